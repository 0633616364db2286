"""Why a trained token has no target of a teacher with another tokenizer."""

from __future__ import annotations

CUT_END = "cut_end"
CUT_CHARACTER = "cut_character"
NOT_EQUAL = "not_equal"
LONE_MARKER = "lone_marker"
BORDER = "border"
NO_VIEW = "no_view"

REASONS: dict[str, str] = {
    CUT_END: "The last chunk of an answer that was cut off: its word may go on.",
    CUT_CHARACTER: "Bytes at the end of an answer that are not yet a character.",
    NOT_EQUAL: "The teacher's tokenizer does not keep these bytes as they are.",
    LONE_MARKER: "A special token that the teacher does not have at this place.",
    BORDER: "A chunk that is trained in part, or that reaches into what the teacher's template writes.",
    NO_VIEW: "No part of an answer, or an answer that the teacher cannot be shown.",
}
"""The names under which tokens without a target are counted."""
