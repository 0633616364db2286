"""The reference trainer: takes batches, trains on them, hands new weights to the student's server."""
