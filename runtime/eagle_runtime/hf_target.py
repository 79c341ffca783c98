"""A target that our decoder does not run, through transformers: slower but right, behind the same interface.

The model's own code computes everything; only its cache is ours (rows written at slots, read under the step's mask),
and its eager attention takes the mask as given. Models whose state is not a KV row a position cannot verify trees and
are refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .config import EagleRuntimeError, TargetSpec
from .layers import Cache, OnePass, additive_mask
from .target import FullPass, Target, windowed


def load_transformers_target(folder: str | Path, *, dtype: torch.dtype | None, device: torch.device | str,
                             why: EagleRuntimeError) -> Target:
    """Load through ``AutoModelForCausalLM`` (eager attention). ``why`` is our decoder's refusal, put in the notes."""
    try:
        import transformers
    except ImportError as e:
        raise EagleRuntimeError(f"{why.what}, and transformers is not installed", where=why.where,
                                how="pip install transformers") from e
    wanted = dtype or (torch.float32 if torch.device(device).type == "cpu" else "auto")
    try:
        old = tuple(int(n) for n in transformers.__version__.split(".")[:2]) < (4, 56)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder), attn_implementation="eager", local_files_only=True,
            **{"torch_dtype" if old else "dtype": wanted})
    except (OSError, ValueError, KeyError, ImportError) as e:
        raise EagleRuntimeError("transformers cannot load this target either", where=f"{folder}: {e}",
                                how="check the folder, or upgrade transformers") from e
    return TransformersTarget(model.to(device).eval(), why)


class _Rows:
    """The cache as transformers' attention sees it: ``update`` stores the new K/V and returns all that are visible."""

    is_compileable = False

    def __init__(self, cache: Cache, slots: Tensor, length: int) -> None:
        self.cache, self.slots, self.length = cache, slots, length
        self.shapes: dict[int, tuple[int, int]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *args: object,
               **kwargs: object) -> tuple[Tensor, Tensor]:
        self.shapes[layer] = (keys.shape[1], keys.shape[3])
        self.cache.write(layer, keys, values, self.slots)
        return self.cache.view(layer, self.length)

    def get_seq_length(self, layer: int = 0) -> int:
        """0: positions and mask are given, nothing is to be derived from a length."""
        return 0


class TransformersTarget(Target):
    """A target of any family that keeps one K/V row a position in every layer, of one shape."""

    def __init__(self, model: Any, why: EagleRuntimeError) -> None:
        self.model, self.base = model, model.base_model
        config = model.config.get_text_config()
        self.dtype, self.device = model.dtype, model.device
        self.embedding = model.get_input_embeddings().weight
        layers = [m for m in self.base.modules()
                  if isinstance(m, torch.nn.ModuleList) and len(m) == config.num_hidden_layers]
        if not layers:
            raise EagleRuntimeError("the target's layers were not found", where=f"model_type {config.model_type}",
                                    how="measure it with --engine vllm")
        self.layers = layers[0]
        takes = inspect.signature(self.base.forward).parameters  # transformers renamed the argument in 5.x
        self.cache_argument = "cache" if "cache" in takes else "past_key_values"
        self.types = tuple(getattr(config, "layer_types", None) or ())
        self.window: int | None = getattr(config, "sliding_window", None)
        if not self.types and getattr(config, "use_sliding_window", True) is False:
            self.window = None
        self.scale = float(getattr(config, "logit_scale", 1.0) or 1.0) / float(
            getattr(config, "logits_scaling", 1.0) or 1.0)
        self.cap = getattr(config, "final_logit_softcapping", None)
        heads, width = self._kv_shape(config.num_hidden_layers, config.model_type)
        eos = config.eos_token_id
        self.spec = TargetSpec(
            model_type=config.model_type, hidden_size=config.hidden_size,
            intermediate_size=int(getattr(config, "intermediate_size", 0) or 0), num_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads, num_key_value_heads=heads, head_dim=width,
            vocab_size=self.embedding.shape[0], rms_norm_eps=float(getattr(config, "rms_norm_eps", 1e-6) or 1e-6),
            max_position_embeddings=int(getattr(config, "max_position_embeddings", 0) or 2048),
            tie_word_embeddings=bool(config.tie_word_embeddings), sliding_window=self.window,
            eos_token_ids=tuple(eos) if isinstance(eos, (list, tuple)) else () if eos is None else (eos,))
        self.notes = (f"the target runs through transformers, slower than our own decoder: {why.where}",)

    def _kv_shape(self, layers: int, kind: str) -> tuple[int, int]:
        """(heads, width) of the K/V that every layer writes, seen in a pass over one token."""
        zero = torch.zeros((1, 1), dtype=torch.int64, device=self.device)
        rows = _Rows(OnePass(), zero, 1)
        try:
            self._run(zero, zero, rows, torch.ones((1, 1, 1), dtype=torch.bool, device=self.device))
        except (AttributeError, TypeError, ValueError, IndexError) as e:
            raise EagleRuntimeError("this target does not take a KV cache of ours", where=f"model_type {kind}: {e}",
                                    how="upgrade transformers, or measure it with --engine vllm or server:URL") from e
        shapes = set(rows.shapes.values())
        if len(rows.shapes) != layers or len(shapes) != 1:
            raise EagleRuntimeError(
                "a tree cannot be verified on this target: not every layer keeps one K/V row a position",
                where=f"model_type {kind}: {len(rows.shapes)} of {layers} layers write K/V, of shapes {sorted(shapes)}",
                how="measure it with --engine vllm, or server:URL")
        return shapes.pop()

    @torch.no_grad()
    def _run(self, ids: Tensor, positions: Tensor, rows: _Rows, mask: Tensor) -> Tensor:
        near = windowed(mask, positions, self.window)
        full = additive_mask(mask, 1, self.dtype)
        given: Tensor | dict[str, Tensor]
        if len(set(self.types)) > 1:
            given = {"full_attention": full, "sliding_attention": additive_mask(near, 1, self.dtype)}
        else:
            given = full if set(self.types) == {"full_attention"} else additive_mask(near, 1, self.dtype)
        out = self.base(input_ids=ids, position_ids=positions, attention_mask=given, use_cache=True,
                        **{self.cache_argument: rows})
        hidden: Tensor = out.last_hidden_state
        return hidden

    @property
    def head_weight(self) -> Tensor:
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    def embed(self, ids: Tensor) -> Tensor:
        """As the model does it, scaling included (Gemma's)."""
        out: Tensor = self.model.get_input_embeddings()(ids)
        return out

    @torch.no_grad()
    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.get_output_embeddings()(hidden) * self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def forward(self, ids: Tensor, positions: Tensor, cache: Cache, slots: Tensor, mask: Tensor,
                taps: tuple[int, ...] = (), taps_out: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        with _Boundaries(self.layers, taps) as seen:
            hidden = self._run(ids, positions, _Rows(cache, slots, mask.shape[-1]), mask)
        if not taps:
            return hidden, None
        together = torch.cat([seen[t] for t in taps], -1)
        return hidden, together if taps_out is None else taps_out.copy_(together)

    def forward_full(self, ids: Tensor, keep: Iterable[int] = ()) -> FullPass:
        n = len(ids)
        positions = torch.arange(n, device=ids.device)[None]
        mask = torch.ones((1, n, n), dtype=torch.bool, device=ids.device).tril_()
        with _Boundaries(self.layers, tuple(keep)) as seen:
            hidden = self._run(ids[None], positions, _Rows(OnePass(), positions, n), mask)
        return FullPass(hidden[0], {b: x[0] for b, x in seen.items()})


class _Boundaries:
    """Hooks that keep the residual stream at some boundaries: what goes into layer 0, what comes out of layer i - 1."""

    def __init__(self, layers: Any, boundaries: tuple[int, ...]) -> None:
        self.layers, self.boundaries = layers, set(boundaries)
        self.handles: list[Any] = []

    def __enter__(self) -> dict[int, Tensor]:
        seen: dict[int, Tensor] = {}

        def entering(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[0] = args[0] if args else kwargs["hidden_states"]

        def leaving(boundary: int) -> Any:
            def hook(module: Any, args: Any, out: Any) -> None:
                seen[boundary] = out[0] if isinstance(out, tuple) else out
            return hook

        for b in self.boundaries:
            self.handles.append(
                self.layers[0].register_forward_pre_hook(entering, with_kwargs=True) if b == 0
                else self.layers[b - 1].register_forward_hook(leaving(b)))
        return seen

    def __exit__(self, *error: object) -> None:
        for handle in self.handles:
            handle.remove()
