"""What will be run: settings and prompts, from the command line, the target, and a replayed trace if any."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from eagle_convert.errors import UsageError
from eagle_runtime.config import Sampling, TreeShape

from .options import Options
from .prompts import Prompts, read_rows, take, tokenize
from .settings import Settings, differences, prompt_differences, refuse
from .trace import Trace

DEFAULT_DRAFT_TOKENS = 4


def settings_given(options: Options, base: Settings) -> Settings:
    """``base`` with everything that the command line states."""
    sampling = replace(base.sampling, **{
        key: value for key in ("temperature", "top_p", "top_k", "seed")
        if (value := getattr(options, key)) is not None})
    return replace(base, shape=options.shape or base.shape, sampling=sampling,
                   max_new_tokens=options.max_new_tokens or base.max_new_tokens,
                   dtype=base.dtype if options.dtype == "auto" else options.dtype, device=options.device,
                   runner=options.runner, lanes=options.lanes)


def settings_of_replay(options: Options, name: str, trace: Trace, method: str | None) -> tuple[Settings, list[str]]:
    """A replayed file's settings, and warnings.

    A compared setting that is given, or a draft's method, that differs from the file's is exit 2 with both values;
    another one (dtype, the seed at temperature 0) is a warning.
    """
    given = settings_given(options, trace.settings)
    if method is not None:
        given = replace(given, method=method)
    found = differences(given.document(), trace.settings.document())
    if found:
        refuse(found, "this command", name)
    warnings = [f"{key} is {mine}, {name} was recorded with {theirs}" for key, mine, theirs in (
        ("dtype", given.dtype, trace.settings.dtype),
        ("the seed", given.sampling.seed, trace.settings.sampling.seed)) if mine != theirs]
    return given, warnings


def fresh_settings(options: Options, method: str, dtype: str, stop_ids: Sequence[int]) -> Settings:
    """The settings of a run without a replayed file: the contract's defaults, and what is given.

    Raises UsageError where not one step could count: such a run costs minutes and decides nothing.
    """
    base = Settings(method, TreeShape.chain(DEFAULT_DRAFT_TOKENS), sampling=Sampling(), dtype=dtype,
                    eos_token_ids=tuple(stop_ids))
    settings = settings_given(options, base)
    least = settings.shape.deepest + 2  # a step counts if root + k + 1 < max_new_tokens
    if settings.max_new_tokens < least:
        raise UsageError("no step can count: the length limit could cut each short",
                         where=f"steps {settings.shape.deepest} drafts deep, --max-new-tokens "
                               f"{settings.max_new_tokens}, expected at least {least}",
                         how="give more --max-new-tokens, or draft less deep")
    return settings


def prompts_of_replay(options: Options, name: str, trace: Trace, target: Path | None) -> Prompts:
    """A replayed file's prompts. ``--prompts`` beside it must be the same, row by row (exit 2)."""
    ids = tuple(row.prompt_ids for row in trace.prompts)
    if options.prompts is None:
        return Prompts(name, ids)
    source, rows = read_rows(Path(options.prompts))
    given = tokenize(source, take(rows, options.num_prompts)[0], target, raw=options.raw)
    found = prompt_differences(given.ids, ids)
    if found:
        refuse(found, "--prompts", name)
    return given


def fresh_prompts(options: Options, target: Path | None) -> tuple[Prompts, list[str]]:
    """The prompts of a run without a replayed file, and warnings."""
    source, rows = read_rows(None if options.prompts is None else Path(options.prompts))
    rows, warning = take(rows, options.num_prompts)
    prompts = tokenize(source, rows, target, raw=options.raw)
    warnings = [] if warning is None else [warning]
    if options.raw and any(row.ids is None for row in rows):
        warnings.append("untemplated (--raw): a head trained on chats accepts less here")
    return prompts, warnings


def same_runs(one: tuple[str, Trace], two: tuple[str, Trace]) -> None:
    """Two replayed files must have been run alike: exit 2 with what differs, for prompts the first that does."""
    first, second = one[1], two[1]
    found = differences(first.settings.document(), second.settings.document())
    found += prompt_differences([row.prompt_ids for row in first.prompts], [row.prompt_ids for row in second.prompts])
    if found:
        refuse(found, one[0], two[0])


def first_prompt(prompts: Prompts) -> str:
    """The first prompt as the target sees it, in one line, for people."""
    if prompts.first is not None:
        return json.dumps(prompts.first, ensure_ascii=False)
    ids = prompts.ids[0]
    shown = " ".join(map(str, ids[:16]))
    return f"token ids {shown}{' ...' if len(ids) > 16 else ''}"
