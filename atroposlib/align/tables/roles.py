"""Which tokens begin, end, fill and divide a text, so that two vocabularies can pair them by what they do."""

from __future__ import annotations

from atroposlib.align.tables.tokenizer_file import TokenizerConfig, TokenizerFile

ROLES: dict[str, str] = {
    "bos": "Begins a text.",
    "eos": "Ends a text, or the answer.",
    "pad": "Fills a batch up.",
    "unk": "Stands for what has no token.",
    "end_of_turn": "Ends a turn of a conversation.",
    "think_open": "Begins the reasoning.",
    "think_close": "Ends the reasoning.",
}
"""What a token can be for, by name."""

END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eot|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<turn|>",
)
"""The markers that model families end a turn with; the others end it with their end of text."""

THINKING = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
)
"""The markers around the reasoning, where they are tokens."""


def find_roles(file: TokenizerFile, config: TokenizerConfig) -> dict[str, int]:
    """The id of each role in :data:`ROLES` that the files give one.

    The configuration names bos, eos, pad and unk. Its words have no place for the others: those are known by
    their markers, and only where a marker is an added token, which plain text is never read as by accident.
    """
    added = {token.content: token.id for token in file.added_tokens}
    ids = file.model.pieces() | added
    named = {role: config.named(role) for role in ("bos", "eos", "pad", "unk")}
    roles = {role: ids[name] for role, name in named.items() if name in ids}
    if "unk" not in roles and (unknown := file.model.unknown_id()) is not None:
        roles["unk"] = unknown
    marker = _end_of_turn(added, named["eos"], config.template())
    if marker is not None:
        roles["end_of_turn"] = added[marker]
    elif "eos" in roles:
        roles["end_of_turn"] = roles["eos"]
    for opener, closer in THINKING:
        if opener in added and closer in added:
            return roles | {"think_open": added[opener], "think_close": added[closer]}
    return roles


def _end_of_turn(added: dict[str, int], eos: str | None, template: str) -> str | None:
    """A model's own end is the surest; then what its chat template writes; then what there is."""
    markers = [marker for marker in END_OF_TURN if marker in added]
    if eos in markers:
        return eos
    return next((marker for marker in markers if marker in template), markers[0] if markers else None)
