"""Settings of every loss by name, and what each computes, needs and is good for."""
