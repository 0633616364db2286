"""Maps between two vocabularies: the projection matrix, the quotient, and where cuts are safe."""
