"""The student side: model servers that environments sample from."""
