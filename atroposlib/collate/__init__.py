"""From the groups of a batch to what the trainer's forward pass and its losses read."""

from atroposlib.collate.batch import Batch, RowTargets, collate, row_targets
from atroposlib.collate.reading import train_sequences
from atroposlib.collate.sequences import CollateCounts, TrainSequence
from atroposlib.collate.sources import Source, Wanted
from atroposlib.collate.targets import Rows

__all__ = [
    "Batch",
    "CollateCounts",
    "RowTargets",
    "Rows",
    "Source",
    "TrainSequence",
    "Wanted",
    "collate",
    "row_targets",
    "train_sequences",
]
