"""Different words for one class in a column, such as yes, Y and TRUE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from graphslice.data.columns import quoted_list
from graphslice.data.parse_cells import (
    NO_WORDS,
    YES_WORDS,
    class_indices,
    class_key,
    is_empty,
    number_key,
    parse_number,
)
from graphslice.data.tables import texts
from graphslice.errors import InputError
from graphslice.tasks import Task

# At most this many notations of a class are listed.
_MOST_NOTATIONS = 6


def merge_class_words(
    names: Mapping[str, Counter[str]], numbers: Iterable[str], label: str
) -> dict[str, Counter[str]] | None:
    """Merge the words for yes, and those for no, of a column that has no other classes.

    Args:
        names: notations of every class with counts, by :func:`~graphslice.data.parse_cells.class_key`.
        numbers: keys of the numbers among the words.
        label: name of the column, for messages.

    Returns:
        The notations of the most common word of each of the two classes, by its key; None if nothing is merged.

    Raises:
        InputError: if there are several words for yes or for no, but also other classes or no opposite.
    """
    keys = {*names, *numbers}
    yes, no, others = keys & YES_WORDS, keys & NO_WORDS, keys - YES_WORDS - NO_WORDS
    repeated = sorted(yes if len(yes) > 1 else no)
    if (len(yes) < 2 and len(no) < 2) or (others and not (yes and no)):
        return None
    if others or not (yes and no):
        also = f"there are others too ({quoted_list(sorted(others), 3)})" if others else "there is no other class"
        raise InputError(
            f"{label}: {quoted_list(repeated)} mean the same class, but {also}: write each class in one way, or "
            "give --task multiclass to keep all words apart"
        )
    notations = {word: names.get(word, Counter({word: 1})) for word in sorted(yes | no)}
    most_common = (max(sorted(words), key=lambda word: notations[word].total()) for words in (no, yes))
    return {word: notations[word] for word in most_common}


def class_notes(chunks: Iterable[pa.Table], tasks: Sequence[Task]) -> list[str]:
    """List the notations of classes of molecule-level targets that have several, one line per target."""
    named = [task for task in tasks if task.classes]
    cells: dict[str, Counter[str]] = {task.name: Counter() for task in named}
    for chunk in chunks if named else ():
        for task in named:
            cells[task.name].update(texts(chunk.column(task.name)))
    notes = []
    for task in named:
        notations = _other_notations(task, cells[task.name])
        if described := [f"{name} = {', '.join(words)}" for name, words in notations.items() if words]:
            notes.append(f"classes of {task.name}: {'; '.join(described)}")
    return notes


def _other_notations(task: Task, cells: Counter[str]) -> dict[str, list[str]]:
    """Return the notations of each class other than its name, most common first; numbers of equal value are one."""
    indices, found = class_indices(task.classes), {name: list[str]() for name in task.classes}
    for cell, _ in cells.most_common():
        text, index = cell.strip(), indices.get(class_key(cell))
        if is_empty(cell) or index is None:
            continue
        name = task.classes[int(index)]
        number = parse_number(text)  # 1 and 1.0 are the same in every program, but 01 and 1.10 may be codes
        is_plain = parse_number(name) == number and text in (number_key(number), str(number))
        if text != name and text not in found[name] and not is_plain:
            found[name].append(text)
    return {
        name: [*words[:_MOST_NOTATIONS], *(["..."] if len(words) > _MOST_NOTATIONS else [])]
        for name, words in found.items()
    }
