"""Tables with a message a row, as OpenAssistant's: each tree of answers becomes the chat of its best-ranked ones.

    message_id  parent_id  role       text              rank
    m1                     prompter   Which colour?
    m2          m1         assistant  Red.              0
    m3          m1         assistant  No idea.          1

`data.fields: {messages: text, message: message_id, parent: parent_id, role: role, rank: rank}` reads them so: from the
first message on, the answer of the lowest rank (those without one come last), up to the last answer of the assistant.
Rows of one tree follow each other; all other messages are left out and counted (`lower-ranked`).

Source of the columns: OpenAssistant Conversations, Köpf et al. 2023 (arXiv 2304.07327), data set `oasst1`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from forerun.data.own.columns import Column, Row, is_empty, number_of
from forerun.data.own.format_parts import VALUES, Proposal
from forerun.data.own.repairs import Repairs

NAMES = {
    "messages": ("text", "content", "message"), "message": ("message_id",),
    "parent": ("parent_id", "parent_message_id"), "role": ("role", "from", "author"), "rank": ("rank",),
}  # fmt: skip
"""Part of a row → names of its column."""
ANSWERS = ("assistant", "gpt", "bot")


def with_trees(rows: Iterable[Row], fields: Mapping[str, str], source: str, repairs: Repairs) -> Iterator[Row]:
    """A row for each tree, whose column of `messages` is a list; rows as they are where `fields` name no parent.

    Raises:
        BadData: a message is not on the best path of its tree, and `repairs` does not allow to leave it out.
    """
    if "parent" not in fields:
        yield from rows
        return
    tree: list[tuple[int, Row]] = []
    ids: set[str] = set()
    for number, row in enumerate(rows, start=1):
        if fields["message"] not in row:
            yield row  # files to be answered hold chats
            continue
        parent = row.get(fields["parent"])
        if tree and (is_empty(parent) or str(parent) not in ids):
            yield from _best_path(tree, fields, source, repairs)
            tree, ids = [], set()
        tree.append((number, row))
        ids.add(str(row[fields["message"]]))
    if tree:
        yield from _best_path(tree, fields, source, repairs)


def _best_path(
    tree: Sequence[tuple[int, Row]], fields: Mapping[str, str], source: str, repairs: Repairs
) -> Iterator[Row]:
    """The chat of a tree, if an answer is in it."""
    children: dict[str, list[int]] = {}
    for place, (_, row) in enumerate(tree[1:], start=1):
        children.setdefault(str(row.get(fields["parent"])), []).append(place)
    path = [0]
    while below := children.get(str(tree[path[-1]][1][fields["message"]])):
        path.append(min(below, key=lambda place: _rank(tree[place][1], fields)))
    while path and str(tree[path[-1]][1].get(fields["role"])).lower() not in ANSWERS:
        path.pop()  # nobody answered it
    if not is_empty(tree[0][1].get(fields["parent"])):
        path = []  # its first message is not here
    for place, (number, _) in enumerate(tree):
        if place not in path:
            rule = (
                f"messages of a tree are those of its best-ranked answers (data.fields.parent: {fields['parent']}); "
                f"found one beside them, without an answer, or whose own parent does not stand before it."
            )
            repairs.allow("lower-ranked", f"{source}, row {number}", rule)
    if path:
        text, role = fields["messages"], fields["role"]
        messages = [{"role": tree[place][1].get(role), "content": tree[place][1].get(text)} for place in path]
        yield {**tree[0][1], text: messages}


def _rank(row: Row, fields: Mapping[str, str]) -> float:
    rank = number_of(row.get(fields["rank"])) if "rank" in fields else None
    return float("inf") if rank is None else rank


def trees_by_names(columns: Mapping[str, Column]) -> list[Proposal]:
    """Rows that are messages with their own and their parents' names."""
    by_name = {column.name.lower(): column.name for column in columns.values()}
    fields = {part: by_name[name] for part, names in NAMES.items() for name in names[::-1] if name in by_name}
    if set(NAMES) - {"rank"} - set(fields):
        return []
    path = f"the best by {fields['rank']} of each answer" if "rank" in fields else "the first answer of each"
    reason = f"{fields['parent']} says which message a row answers: chats are made of {path}."
    return [Proposal("messages", fields, "causal-lm", False, reason, VALUES)]
