"""A student's sequence as a teacher with another tokenizer reads it, through the teacher's chat template."""
