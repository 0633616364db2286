"""The byte table of one tokenizer: what each id stands for, and what the bytes of a sequence are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from atroposlib.align.tables.steps import Prefix

UNUSED, TEXT, SPECIAL = 0, 1, 2
"""Kinds of ids: without a token or with an empty one; with bytes; a marker, which is no part of the text."""

FORMAT = 1
"""Raised whenever the same files would give another table, so that no older one is used."""

_SPACE = 0x20


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What the ids of a tokenizer stand for. V is the largest id plus one; the model's head may be wider.

    Attributes:
        blob: uint8 [N]. The bytes of all ids in a row; special ids have none.
        offsets: int64 [V + 1]. Id i has ``blob[offsets[i]:offsets[i + 1]]``.
        kinds: uint8 [V]. :data:`UNUSED`, :data:`TEXT` or :data:`SPECIAL`.
        cuts: bool [V]. Ids behind which the tokenizer puts in a space again, with prefix ``always``.
        prefix: Where a space that is not part of the text is put in before it.
        roles: Id by role (:data:`~atroposlib.align.tables.roles.ROLES`), of those that the tokenizer has.
        names: How special ids are written.
        lossy: What a text can lose on its way into ids, sorted
            (:data:`~atroposlib.align.tables.steps.LOSSY`). Text that needs none of these steps comes back
            byte for byte.
    """

    blob: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.uint8]
    cuts: npt.NDArray[np.bool_]
    prefix: Prefix
    roles: Mapping[str, int]
    names: Mapping[int, str]
    lossy: tuple[str, ...]

    def __len__(self) -> int:
        """V."""
        return len(self.kinds)

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits of everything above, the same on every machine."""
        digest = hashlib.sha256(json.dumps([FORMAT, self.facts()], sort_keys=True).encode())
        for array, dtype in ((self.offsets, "<i8"), (self.kinds, "u1"), (self.cuts, "u1"), (self.blob, "u1")):
            digest.update(np.ascontiguousarray(array, dtype=dtype).tobytes())
        return digest.hexdigest()[:32]

    def facts(self) -> dict[str, Any]:
        """What is not an array, as JSON has it."""
        return {
            "prefix": self.prefix,
            "roles": dict(self.roles),
            "names": {str(number): name for number, name in self.names.items()},
            "lossy": list(self.lossy),
        }

    def with_markers(self, names: Mapping[int, str]) -> Vocabulary:
        """The table in which these ids, by how they are written, are special too."""
        kinds, lengths = self.kinds.copy(), np.diff(self.offsets)
        kinds[list(names)] = SPECIAL
        blob = self.blob[np.repeat(kinds != SPECIAL, lengths)]
        lengths[list(names)] = 0
        every = dict(sorted({**self.names, **names}.items()))
        return replace(self, blob=blob, offsets=np.append(0, np.cumsum(lengths)), kinds=kinds, names=every)

    def bytes_of(self, number: int) -> bytes:
        """The bytes of one id; none for a special one and for one that the tokenizer does not have."""
        if not 0 <= number < len(self):
            return b""
        return self.blob[self.offsets[number] : self.offsets[number + 1]].tobytes()

    def lengths(self, ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """How many bytes of the text each token of a sequence is, int64 [T].

        Args:
            ids: Integers [T], from the begin of a text; ids that the tokenizer lacks are 0 bytes long.
        """
        return self._spans(ids)[1]

    def text(self, ids: npt.ArrayLike) -> bytes:
        """The bytes of a sequence, without its special tokens and without the space that was put in.

        Args:
            ids: Integers [T], from the begin of a text.
        """
        begins, lengths = self._spans(ids)
        before = np.cumsum(lengths) - lengths
        where = np.repeat(begins - before, lengths) + np.arange(int(lengths.sum()))
        return self.blob[where].tobytes()

    def _spans(self, ids: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        wanted = np.asarray(ids, dtype=np.int64)
        known = (wanted >= 0) & (wanted < len(self))
        numbers = np.where(known, wanted, 0)
        begins = self.offsets[numbers]
        lengths = np.where(known, self.offsets[numbers + 1] - begins, 0)
        spaces = self.put_in_spaces(wanted)
        begins[spaces] += 1
        lengths[spaces] -= 1
        return begins, lengths

    def put_in_spaces(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Positions, int64 [P], of tokens that begin with a space which the tokenizer put in.

        Args:
            ids: int64 [T], from the begin of a text.
        """
        if self.prefix == "none":
            return np.empty(0, dtype=np.int64)
        known = (ids >= 0) & (ids < len(self))
        numbers = np.where(known, ids, 0)
        is_text = known & (self.kinds[numbers] == TEXT)
        if self.prefix == "first":
            at = np.flatnonzero(is_text)[:1]
        else:
            # Padding with ids that are none, such as -1, is no text either.
            behind_cut = np.append(True, self.cuts[numbers] | ~known)[: len(ids)]
            at = np.flatnonzero(behind_cut & is_text)
        put_in: npt.NDArray[np.int64] = at[self.blob[self.offsets[ids[at]]] == _SPACE]
        return put_in
