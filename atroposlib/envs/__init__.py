"""Environments: rollouts of a student, scored by a reward and by teachers, posted to the trajectory API."""
