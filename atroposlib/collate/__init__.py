"""From the groups of a batch to what the trainer's forward pass reads."""

from atroposlib.collate.batch import Batch, collate
from atroposlib.collate.sequences import CollateCounts, TrainSequence, train_sequences

__all__ = ["Batch", "CollateCounts", "TrainSequence", "collate", "train_sequences"]
