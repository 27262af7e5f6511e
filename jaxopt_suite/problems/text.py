"""Real English text that every Python carries, as integer characters."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxopt_suite.core.checks import check_integer, check_interval


class CharacterText(NamedTuple):
    """A text cut in two, each character the index of its symbol.

    Attributes:
        train: the first part, shape ``(n,)``, int32.
        validation: the rest.
        symbols: the distinct characters in order; index ``i`` stands for
            ``symbols[i]``.
    """

    train: Int[Array, " n"]
    validation: Int[Array, " m"]
    symbols: str


@functools.cache
def help_topics() -> str:
    """The help topics of the Python language, sorted by name, one after another.

    About 465,000 characters of technical English under Python 3.11. Every version of
    Python has its own, so figures measured on it compare within one version only.

    Example:
        >>> 'The "assert" statement' in help_topics()
        True
    """
    from pydoc_data import topics

    return "\n".join(topics.topics[name] for name in sorted(topics.topics))


def character_text(text: str, train_fraction: float = 0.9) -> CharacterText:
    """Turns a text into integer characters and cuts it into two parts.

    Args:
        text: at least two characters.
        train_fraction: share of the characters, from the start, in ``train``; in
            (0, 1).

    Raises:
        ValueError: ``text`` is no string, a part would be empty, or
            ``train_fraction`` is not in (0, 1).

    Example:
        >>> data = character_text("abracadabra", train_fraction=0.8)
        >>> data.symbols, data.train.tolist(), data.validation.tolist()
        ('abcdr', [0, 1, 4, 0, 2, 0, 3, 0], [1, 4, 0])
    """
    if not isinstance(text, str):
        raise ValueError(f"text must be a string, got {type(text).__name__}")
    check_interval("train_fraction", train_fraction, 0.0, 1.0, closed="()")
    cut = int(train_fraction * len(text))
    if not 0 < cut < len(text):
        raise ValueError(
            "text must be long enough for two parts, got "
            f"{len(text)} characters with train_fraction={train_fraction}"
        )
    # Numbers, as an array of strings would lose the character NUL.
    points, indices = np.unique([ord(c) for c in text], return_inverse=True)
    ids = jnp.asarray(indices, jnp.int32)
    return CharacterText(ids[:cut], ids[cut:], "".join(map(chr, points.tolist())))


def context_windows(
    ids: Int[Array, " n"], length: int, every: int = 1
) -> tuple[Int[Array, "windows length"], Int[Array, " windows"]]:
    """All runs of ``length`` characters and the character after each.

    Args:
        ids: a text as integers; one axis.
        length: characters in a window; static.
        every: keep each ``every``-th window only; static.

    Returns:
        Windows of shape ``(w, length)`` and targets of shape ``(w,)``,
        ``w = ceil((n - length) / every)``.

    Raises:
        ValueError: ``ids`` are not integers along one axis, ``length`` or ``every`` is
            below 1, or no window fits.

    Example:
        >>> windows, targets = context_windows(jnp.arange(5), 3)
        >>> windows.tolist(), targets.tolist()
        ([[0, 1, 2], [1, 2, 3]], [3, 4])
    """
    check_integer("length", length)
    check_integer("every", every)
    if not isinstance(ids, jax.Array):
        ids = np.asarray(ids)
    if ids.ndim != 1 or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(
            f"ids must be integers along one axis, got {ids.dtype} of shape {ids.shape}"
        )
    ids = jnp.asarray(ids)
    if len(ids) <= length:
        raise ValueError(f"length must be < the text's {len(ids)}, got {length}")
    starts = jnp.arange(0, len(ids) - length, every)
    return ids[starts[:, None] + jnp.arange(length)], ids[starts + length]
