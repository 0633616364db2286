"""The indexed queue answers like a plain list of groups, whatever comes, goes and comes back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.store.batching import form_batch
from atroposlib.store.protocol import EnvQueue
from atroposlib.store.queue import Queue
from atroposlib.store.records import Held
from tests.store.support import group

GROUPS = st.tuples(st.integers(1, 7), st.none() | st.integers(0, 2), st.none() | st.integers(0, 3))


def held(arrival: int, sequences: int, env_id: int | None, version: int | None) -> Held:
    facts = group(f"g{arrival}", sequences, env_id, policy_version=version).facts
    return Held(facts, arrival, arrived_at=float(arrival))


@given(st.lists(GROUPS, max_size=12), st.data())
@settings(max_examples=200, deadline=None)
def test_the_queue_answers_like_a_list(
    kinds: list[tuple[int, int | None, int | None]], data: st.DataObject
) -> None:
    groups = [held(arrival, *kind) for arrival, kind in enumerate(kinds)]
    queue = Queue()
    for entry in groups:
        queue.add(entry)
    taken = data.draw(st.lists(st.sampled_from(groups), unique=True)) if groups else []
    for entry in taken:
        queue.remove(entry)
    back = data.draw(st.permutations(taken).map(lambda order: order[: len(order) // 2]))
    for entry in back:
        queue.add(entry)
    plain = [entry for entry in groups if entry not in taken or entry in back]
    check_counts(queue, plain)
    check_questions(queue, plain, data)


def check_counts(queue: Queue, plain: list[Held]) -> None:
    assert len(queue) == len(plain)
    assert queue.sequences == sum(entry.facts.sequences for entry in plain)
    assert queue.oldest_at() == (plain[0].arrived_at if plain else None)
    sizes: dict[int | None, list[int]] = {}
    for entry in plain:
        sizes.setdefault(entry.facts.env_id, []).append(entry.facts.sequences)
    assert queue.by_env() == {env_id: EnvQueue(sum(known), max(known)) for env_id, known in sizes.items()}


def check_questions(queue: Queue, plain: list[Held], data: st.DataObject) -> None:
    room = data.draw(st.integers(1, 20))
    version = data.draw(st.integers(0, 4))
    minimums = data.draw(st.dictionaries(st.integers(0, 2), st.integers(1, room), max_size=2))
    facts = [entry.facts for entry in plain]
    assert form_batch(queue.front(room), room, minimums) == form_batch(
        [known for known in facts if known.sequences <= room], room, minimums
    )
    assert set(queue.larger_than(room)) == {entry for entry in plain if entry.facts.sequences > room}
    old = {entry for entry in plain if (entry.facts.policy_version or 0) < version}
    assert set(queue.older_than(version)) == {
        entry for entry in old if entry.facts.policy_version is not None
    }


def test_a_long_queue_is_not_read_for_a_small_batch() -> None:
    queue = Queue()
    for arrival in range(10_000):
        queue.add(held(arrival, 8, arrival % 2, None))
    front = [facts.group_id for facts in queue.front(64)]
    assert front == [f"g{arrival}" for arrival in range(18)]
