"""Package data: ``prompts.jsonl``, the 48 prompts that ``parity-check`` measures by default."""
