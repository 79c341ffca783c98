"""A pickle reader that cannot run anything: a stack machine over the opcodes of a saved state dict.

The standard unpickler imports and calls what the file names. This one never imports and never calls: a global is a
name on the stack, and the few reductions that a state dict needs are data to it. Whatever else the file wants to
import is collected and refused at the end, all names at once. ``pickletools`` only decodes the opcode stream.

Reductions understood: ``torch/_utils.py`` ``_rebuild_tensor`` (also ``_v2``, ``_v3``), ``_rebuild_parameter``;
``collections.OrderedDict``; storages by ``torch/serialization.py`` persistent ids.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from typing import IO, Any

from eagle_convert.errors import BrokenFileError, UnsafePickleError

from .dtypes import BY_TORCH_NAME, Dtype

_STORAGES = {"FloatStorage": "F32", "DoubleStorage": "F64", "HalfStorage": "F16", "BFloat16Storage": "BF16",
             "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
             "ByteStorage": "U8", "BoolStorage": "BOOL", "ComplexFloatStorage": "C64", "UntypedStorage": "U8"}
_STORAGE_MODULES = ("torch", "torch.cuda", "torch.storage")
_REBUILD = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter"}


@dataclass(frozen=True)
class Global:
    """A name that the pickle wants to import; only a name here."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def storage(self) -> str | None:
        """The dtype code of a storage class."""
        return _STORAGES.get(self.name) if self.module in _STORAGE_MODULES else None

    @property
    def dtype(self) -> Dtype | None:
        return BY_TORCH_NAME.get(self.name) if self.module == "torch" else None

    @property
    def allowed(self) -> bool:
        return ((self.module, self.name) in {("collections", "OrderedDict"), ("torch", "Size"), ("torch", "device")}
                or (self.module == "torch._utils" and self.name in _REBUILD)
                or (self.module in _STORAGE_MODULES and self.name.endswith("Storage"))  # not all are supported
                or self.dtype is not None)


@dataclass(frozen=True)
class Storage:
    """A storage of the file: its key, element type, and number of elements as the pickle states it."""

    key: str
    dtype: str
    elements: int


@dataclass(frozen=True)
class PickledTensor:
    """A view of a storage; ``offset`` and ``stride`` in elements."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Opaque:
    """The result of a reduction that is not a tensor; nothing looks inside."""


class _Mark:
    pass


class _Machine:
    def __init__(self, name: str) -> None:
        self.name = name
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.foreign: dict[str, None] = {}  # in the order met

    def broken(self, detail: str) -> BrokenFileError:
        return BrokenFileError(f"{self.name} is not a state dict that can be read", where=f"{self.name}: {detail}",
                               how="save the plain state dict again: torch.save(model.state_dict(), path)")

    def run(self, stream: IO[bytes]) -> Any:
        try:
            for opcode, arg, _ in pickletools.genops(stream):
                self.step(opcode.name, arg)
        except BrokenFileError:
            self.refuse_foreign()
            raise
        except (IndexError, KeyError, TypeError, AttributeError, ValueError, RecursionError, MemoryError) as e:
            # what an opcode stream that was made up runs into: an empty stack, an unknown memo, a cut argument
            self.refuse_foreign()  # says more than "damaged" does
            raise self.broken(f"the pickle is damaged ({type(e).__name__}: {e})") from None
        self.refuse_foreign()
        if len(self.stack) != 1:
            raise self.broken("the pickle is damaged (it ends with more than one object)")
        return self.stack[0]

    def refuse_foreign(self) -> None:
        if self.foreign:
            names = ", ".join(f"`{n}`" for n in self.foreign)
            raise UnsafePickleError(
                f"{self.name} is a pickle that wants to import {names}; it was NOT executed",
                where=f"{self.name}: only tensors, names and numbers expected",
                how="save only the tensors: torch.save(model.state_dict(), path), or safetensors; "
                    "there is no flag that runs it")

    def step(self, op: str, arg: Any) -> None:
        stack = self.stack
        if op in ("PROTO", "FRAME", "STOP"):
            return
        if op == "MARK":
            stack.append(_Mark)
        elif op in _PUSH_ARGUMENT:
            stack.append(arg)
        elif op in _CONSTANTS:
            stack.append(_CONSTANTS[op])
        elif op in _EMPTY:
            stack.append(_EMPTY[op]())
        elif op in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[arg] = stack[-1]
        elif op == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif op in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[arg])
        elif op == "POP":
            stack.pop()
        elif op == "POP_MARK":
            self.to_mark()
        elif op == "TUPLE":
            stack.append(tuple(self.to_mark()))
        elif op in _TUPLES:
            items = [stack.pop() for _ in range(_TUPLES[op])]
            stack.append(tuple(reversed(items)))
        elif op == "APPEND":
            item = stack.pop()
            self.extend([item])
        elif op == "APPENDS":
            self.extend(self.to_mark())
        elif op == "ADDITEMS":  # a set: its items are of no use here
            self.to_mark()
        elif op == "SETITEM":
            value, key = stack.pop(), stack.pop()
            self.set_items([key, value])
        elif op == "SETITEMS":
            self.set_items(self.to_mark())
        elif op == "GLOBAL":
            module, _, attribute = arg.partition(" ")
            self.push_global(module, attribute)
        elif op == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            self.push_global(str(module), str(attribute))
        elif op in ("REDUCE", "NEWOBJ"):
            arguments, function = stack.pop(), stack.pop()
            stack.append(self.reduce(function, arguments))
        elif op == "NEWOBJ_EX":
            del stack[-3:]
            stack.append(_Opaque())
        elif op in ("INST", "OBJ"):
            items = self.to_mark()
            function = Global(*arg.split(" ", 1)) if op == "INST" else items[0]
            self.push_global(function.module, function.name)
            stack[-1] = _Opaque()
        elif op == "BUILD":  # attributes of the object below, such as OrderedDict's _metadata: not needed
            stack.pop()
        elif op == "BINPERSID":
            stack.append(self.persistent(stack.pop()))
        else:
            raise self.broken(f"the pickle uses the opcode {op}, which no state dict needs")

    def to_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _Mark:
            at -= 1
            if at < 0:
                raise IndexError("no mark on the stack")
        items = self.stack[at + 1:]
        del self.stack[at:]
        return items

    def extend(self, items: list[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(items)
        elif not isinstance(self.stack[-1], _Opaque):
            raise TypeError("items for something that is no list")

    def set_items(self, items: list[Any]) -> None:
        table = self.stack[-1]
        if isinstance(table, _Opaque):
            return
        if not isinstance(table, dict):
            raise TypeError("items for something that is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Only plain keys are hashed: hashing a deeply nested tuple would overrun the C stack.
            table[key if isinstance(key, str | int) else _Opaque()] = value

    def push_global(self, module: str, attribute: str) -> None:
        found = Global(module, attribute)
        if not found.allowed:
            self.foreign.setdefault(str(found))
        self.stack.append(found)

    def reduce(self, function: Any, arguments: Any) -> Any:
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise TypeError("a call of something that is no global")
        if function == Global("collections", "OrderedDict"):
            self.stack.append({})
            self.set_items([x for pair in (arguments[0] if arguments else ()) for x in pair])
            return self.stack.pop()
        if function.module == "torch._utils" and function.name == "_rebuild_parameter":
            return arguments[0]
        if function.module == "torch._utils" and function.name in _REBUILD:
            return self.tensor(function, arguments)
        return _Opaque()

    def tensor(self, function: Global, arguments: tuple[Any, ...]) -> PickledTensor:
        storage, offset, shape, stride = arguments[:4]
        dtype = storage.dtype
        if function.name == "_rebuild_tensor_v3":
            if not isinstance(arguments[6], Global) or arguments[6].dtype is None:
                raise self.broken(f"a tensor of the type {arguments[6]}, which is not supported")
            dtype = arguments[6].dtype.code
        elif len(arguments) > 6 and arguments[6]:
            raise self.broken("a tensor with a lazy conjugate or negative bit")
        numbers = (offset, *shape, *stride)
        if not isinstance(storage, Storage) or len(shape) != len(stride) or not all(type(n) is int for n in numbers):
            raise TypeError("a tensor without storage, sizes and strides")
        return PickledTensor(storage, dtype, offset, tuple(shape), tuple(stride))

    def persistent(self, pid: Any) -> Storage:
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
            raise TypeError("a persistent id that is no storage")
        kind, key, elements = pid[1], pid[2], pid[4]
        if not isinstance(kind, Global) or kind.storage is None:
            raise self.broken(f"a storage of the type {kind}, which is not supported")
        if len(pid) > 5 and pid[5] is not None:
            raise self.broken("a storage that is a view of another one (torch before 0.4)")
        if type(elements) is not int or elements < 0:
            raise TypeError("a storage without a size")
        return Storage(str(key), kind.storage, elements)


_PUSH_ARGUMENT = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BININT", "BININT1", "BININT2", "INT",
                  "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
                  "BINSTRING", "SHORT_BINSTRING", "STRING", "BYTEARRAY8"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY: dict[str, type] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": _Opaque}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_pickle(stream: IO[bytes], name: str) -> Any:
    """The next pickle of a stream as plain Python data, :class:`PickledTensor` and opaque objects.

    Raises:
        UnsafePickleError: the pickle names something foreign; nothing was imported or called.
        BrokenFileError: damaged, or not a state dict.
    """
    return _Machine(name).run(stream)
