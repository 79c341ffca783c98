"""What the engine facts are about: a head as it is found, and questions that several facts ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from eagle_runtime.compact import tensor_shapes
from eagle_runtime.config import Algorithm, DraftSpec

Grade = Literal["loaded", "read", "reported"]
Effect = Literal["stops", "wrong", "note"]


@dataclass(frozen=True)
class Case:
    """A file as it is found: what it means (``spec``), its tensor names, its config and its weight files.

    ``num_target_layers`` tells, where it is known, whether declared auxiliary ids are the defaults.
    """

    spec: DraftSpec
    names: frozenset[str]
    config: Mapping[str, Any]
    weight_files: tuple[str, ...] = ()
    num_target_layers: int | None = None

    def has(self, *parts: str) -> bool:
        """Some name contains one of the parts."""
        return any(part in name for name in self.names for part in parts)

    def get(self, key: str) -> Any:
        """A top-level config value; the inner one of the legacy vLLM wrapper, which vLLM unwraps."""
        inner = self.config.get("model")
        return inner.get(key, self.config.get(key)) if isinstance(inner, dict) else self.config.get(key)

    def nested(self, key: str) -> Any:
        """A value inside ``eagle_config``."""
        block = self.config.get("eagle_config")
        return block.get(key) if isinstance(block, dict) else None

    @property
    def architecture(self) -> str:
        names = self.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    @property
    def speculators(self) -> bool:
        return "speculators_config" in self.config or "speculators_model_type" in self.config

    @property
    def theta(self) -> float:
        return 10000.0 if self.spec.rope_theta is None else self.spec.rope_theta

    @property
    def misnamed(self) -> bool:
        """Some tensor of the function is not there under its canonical name, which is the official one."""
        return not tensor_shapes(self.spec).keys() <= self.names

    @property
    def extra_layers(self) -> bool:
        """The config claims more layers than the file has."""
        stated = self.get("num_hidden_layers")
        return isinstance(stated, int) and stated > self.spec.num_layers

    @property
    def aux(self) -> Literal["default", "other", "unknown"]:
        """Whether the auxiliary layers are the official defaults; unknown where ids are declared and L is not known."""
        ids, layers = self.spec.aux_layers, self.num_target_layers
        if ids is None or not self.spec.has_fc or self.spec.algorithm == "eagle":
            return "default"
        if layers is None:
            return "unknown"
        return "default" if ids == (2, layers // 2, layers - 3) else "other"


@dataclass(frozen=True)
class Fact:
    """One fact. ``when`` holds for the files it is about; ``source`` is where it can be looked up."""

    engine: str
    algorithm: Algorithm | None
    effect: Effect
    when: Callable[[Case], bool]
    why: str
    source: str
    grade: Grade


def odd_width(c: Case) -> bool:
    """The query heads together are not as wide as the state."""
    return c.spec.head_dim * c.spec.num_attention_heads != c.spec.hidden_size


def eagle1_norms(c: Case) -> bool:
    """Any norm that official EAGLE-1/2 heads do not have."""
    s = c.spec
    return s.input_norm or s.output_norm or s.embed_norm or s.hidden_norm


def biases(c: Case) -> bool:
    """Any attention bias."""
    return c.spec.qkv_bias or c.spec.o_bias


def extras(c: Case) -> bool:
    """Any part of a layer that official heads do not have."""
    s = c.spec
    return s.mlp_bias or s.qk_norm or s.attention_sinks or s.logit_scale is not None or s.sliding_window is not None


def flags31(c: Case) -> bool:
    """Any flag of EAGLE-3.1."""
    return c.spec.norm_before_fc or c.spec.fc_norm or c.spec.norm_output


def foreign_padding(c: Case) -> bool:
    """The padding id is no id of the vocabulary."""
    value = c.config.get("pad_token_id")
    return type(value) is int and not -c.spec.vocab_size <= value < c.spec.vocab_size


def official_scaling(c: Case) -> bool:
    """rope_scaling is not what the official code parses: a type, linear or dynamic, and a factor, a float above 1."""
    block = c.config.get("rope_scaling")
    return isinstance(block, dict) and not (set(block) == {"type", "factor"} and block["type"] in ("linear", "dynamic")
                                            and isinstance(block["factor"], float) and block["factor"] > 1)


def nested_ids_only(c: Case) -> bool:
    """Auxiliary ids stand inside eagle_config and nowhere else."""
    return bool(c.nested("eagle_aux_hidden_state_layer_ids")) and not c.get("eagle_aux_hidden_state_layer_ids")


def flag_only_nested(c: Case) -> bool:
    """A flag that changes the function is not at top level."""
    return any(getattr(c.spec, key) and c.get(key) is not True and not c.speculators
               for key in ("norm_before_residual", "fc_norm", "norm_output"))
