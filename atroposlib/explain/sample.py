"""The text that `atropos explain` shows when it is given none."""

TEXT = """\
The river rose by 3.5 metres overnight; nobody slept, and 201 houses weren't rebuilt.
def area(r):
    return 3.14159 * r ** 2  # not exact
Let x\u2081 = \u221a(b\u00b2 \u2212 4ac) and 20240229 mod 7 = 4.
Привет, мир! 今日は天気がいい。 مرحبا بالعالم
👩‍💻 shipped it 🚀, a na\u00efve caf\u00e9 and a nai\u0308ve cafe\u0301
"""
"""Prose, code, formulas, several scripts, emoji, and one word written with and without composed letters."""
