"""`atropos explain`: two tokenizations of one text, side by side."""
