"""YAML as data and nothing else: no tags that make objects, no key twice, and limits on size, depth and repetition.

PyYAML's safe loader makes no objects of Python's, but takes the last of two equal keys, follows aliases as far as they
multiply, and overflows the stack. So the events of a text are counted first, then its nodes are looked at, and only
then are values made of them.
"""

from pathlib import Path
from typing import Any

import yaml

from forerun.errors import InvalidSettings
from forerun.settings.plain import DEEPEST, MOST_VALUES, in_short

LARGEST_BYTES = 256 * 2**10
"""Of a file; the longest settings that ship have 3 KB."""
LONGEST_PATH = 300
"""Characters of a path that a message shows whole."""
MERGE = "tag:yaml.org,2002:merge"


def read_yaml(path: Path, kind: str) -> Any:
    """The content of a YAML file; `kind` is what it is, for messages.

    Raises:
        InvalidSettings: it cannot be read, is no YAML, or goes beyond a limit.
    """
    name = str(path) if len(str(path)) <= LONGEST_PATH else in_short(str(path))
    what: object = None
    content = b""
    try:
        if not path.is_file():
            what = "a folder" if path.is_dir() else "something that is no file" if path.exists() else "nothing there"
        else:
            with path.open("rb") as file:
                content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        what = error.strerror
    except ValueError as error:  # a NUL character in the path
        what, name = error, in_short(str(path))
    if what is not None:
        raise InvalidSettings(f"{kind} file {name} cannot be read: {what}. Check the path.")
    if len(content) > LARGEST_BYTES:
        raise InvalidSettings(
            f"{kind} file {path} has more than {LARGEST_BYTES // 2**10} KiB, the most that is read. Are these data?"
        )
    try:
        return parse_yaml(content.decode("utf-8-sig"))
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidSettings(f"{kind} file {path} is not YAML: {' '.join(str(error).split())}") from error


def parse_yaml(text: str) -> Any:
    """The value of one YAML document.

    Raises:
        yaml.YAMLError: it is none, names a key twice, or goes beyond a limit.
        ValueError: one of its values is none, such as the 30th of February.
    """
    _count_events(text)
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count_values(node, {}, ())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count_events(text: str) -> None:
    depth = values = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        values += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST or values > MOST_VALUES:
            raise _refusal(event, f"at most {DEEPEST} levels and {MOST_VALUES:,} values are read; found more")


def _count_values(node: Any, counts: dict[int, int], inside: tuple[int, ...]) -> int:
    """Values under a node with aliases followed; `counts` are those of nodes that were looked at, by their id."""
    if id(node) in inside:
        raise _refusal(node, "an alias stands for what it is in itself; write it out")
    if id(node) not in counts:
        inner: list[Any] = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            _require_single_keys(node)
            inner = [each for pair in node.value for each in pair]
        counts[id(node)] = 1 + sum(_count_values(each, counts, (*inside, id(node))) for each in inner)
        if counts[id(node)] > MOST_VALUES:
            raise _refusal(node, f"aliases stand for more than {MOST_VALUES:,} values; write fewer")
    return counts[id(node)]


def _require_single_keys(node: yaml.MappingNode) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise _refusal(
                    key, f"the key {in_short(key.value)} is there twice, first in line {lines[name]}; keep one"
                )
            lines[name] = line


def _refusal(at: Any, reason: str) -> yaml.YAMLError:
    return yaml.YAMLError(f"line {at.start_mark.line + 1}: {reason}")
