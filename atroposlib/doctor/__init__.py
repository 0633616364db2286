"""`atropos doctor`: every check of the teacher and student servers before a run costs anything."""
