"""A page to read a groups file by: every rollout of every group with its score and its messages."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_GROUPS = 500

TEMPLATE = """<!doctype html>
<meta charset="utf-8">
<title>{{ title }}</title>
<style>
body { font: 14px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
summary { cursor: pointer; font-weight: 600; }
section { border-left: 3px solid #bbb; margin: .8rem 0; padding: 0 .8rem; }
pre { white-space: pre-wrap; margin: .2rem 0 .8rem; }
small { color: #666; }
</style>
<h1>{{ title }}</h1>
{% for group in groups %}
<details{% if loop.first %} open{% endif %}>
<summary>Group {{ loop.index }}, scores {{ group.scores | join(", ") }}</summary>
{% for rollout in group.rollouts %}
<section><small>score {{ rollout.score }}, {{ rollout.tokens }} tokens</small>
{% for message in rollout.messages %}
<small>{{ message.role }}</small><pre>{{ message.content }}</pre>
{% endfor %}
</section>
{% endfor %}
</details>
{% endfor %}
{% if cut %}<p>The first {{ groups | length }} groups of the file.</p>{% endif %}
"""


def write_page(groups_file: Path) -> Path:
    """Write the page of a groups file beside it; the first 500 groups. Returns its path."""
    # Imported here because only `process` needs it.
    from jinja2 import Environment

    with groups_file.open(encoding="utf-8") as lines:
        groups = list(itertools.islice(_read(lines), MOST_GROUPS + 1))
    template = Environment(autoescape=True).from_string(TEMPLATE)
    page = template.render(title=groups_file.stem, groups=groups[:MOST_GROUPS], cut=len(groups) > MOST_GROUPS)
    path = groups_file.with_suffix(".html")
    path.write_text(page, encoding="utf-8")
    return path


def _read(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        group = json.loads(line)
        messages = group.get("messages") or [[] for _ in group["tokens"]]
        columns = zip(group["scores"], group["tokens"], messages, strict=True)
        rollouts = [{"score": score, "tokens": len(ids), "messages": told} for score, ids, told in columns]
        yield {"scores": group["scores"], "rollouts": rollouts}
