"""What is kept with an object as long as it lives: a model's target, a tokenizer's compiled grammars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_ATTRIBUTE = "_ngram_ref_kept"


class _Kept(dict[Any, Any]):
    """The things kept with one object. A copy of the object starts without any: they belong to the original."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Kept:
        return _Kept()

    def __reduce__(self) -> tuple[type[_Kept], tuple[()]]:
        return _Kept, ()


def kept_with(owner: Any, key: Any, make: Callable[[], T]) -> T:
    """Get what is kept with `owner` under `key`; made on the first call.

    Kept as an attribute, not in a table beside: what is kept may refer to its owner, and both go together.

    >>> class Model: pass
    >>> model = Model()
    >>> kept_with(model, "size", lambda: 3), kept_with(model, "size", lambda: 4)
    (3, 3)
    """
    kept: _Kept = owner.__dict__.setdefault(_ATTRIBUTE, _Kept())
    if key not in kept:
        kept[key] = make()
    value: T = kept[key]
    return value
