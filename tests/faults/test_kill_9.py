"""Fifty SIGKILLs each on API, sender and trainer: no acked group is lost, none is in the weights twice."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from atroposlib.trainer.client import TrainerClient
from atroposlib.wire.batch import encode_batch
from atroposlib.wire.frame import encode_group
from atroposlib.wire.media import BATCH_TYPE, FRAME_TYPE
from tests.faults.victim_sender import WORKERS
from tests.faults.world import CYCLES, READY_S, World, kill, registration, small_group, wait_for

GROUPS_A_BATCH = 1
LEASE_S = 2.0
MOST_AHEAD = 20
ENOUGH_QUEUED = 400


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Producer(threading.Thread):
    """Posts groups until it is stopped, each one until it is answered; ``acked`` are those the API took.

    It stays at most ``MOST_AHEAD`` groups ahead of the trainer.
    """

    def __init__(self, url: str, trained: list[str]) -> None:
        super().__init__()
        self._url = f"{url}/v1/groups"
        self._trained = trained
        self.stop = threading.Event()
        self.acked: list[str] = []

    def run(self) -> None:
        """Post one group after another."""
        with requests.Session() as session:
            for number in itertools.count():
                if self.stop.is_set():
                    return
                while len(self.acked) - len(self._trained) > MOST_AHEAD and not self.stop.wait(0.001):
                    pass
                name = f"g{number}"
                self._post(session, encode_group(small_group(name)))
                self.acked.append(name)

    def _post(self, session: requests.Session, frame: bytes) -> None:
        while True:
            try:
                answer = session.post(self._url, data=frame, headers={"Content-Type": FRAME_TYPE}, timeout=10)
            except requests.RequestException:
                continue
            if answer.status_code < 300:
                return
            assert answer.status_code in (429, 503), answer.text


class Consumer(threading.Thread):
    """A trainer whose weights survive everything; ``trained`` are the groups in them."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._client = TrainerClient(url, give_up_after_s=READY_S)
        self.stop = threading.Event()
        self.trained: list[str] = []

    def run(self) -> None:
        """Train batch after batch; once told to stop, until the queue is empty."""
        self._client.register(registration(2 * GROUPS_A_BATCH), trainer_id="consumer")
        while not (self.stop.is_set() and self._empty()):
            batch = self._client.lease(wait_s=0.1, lease_s=LEASE_S)
            if batch is None:
                continue
            self.trained += [group.rest["group_id"] for group in batch.groups]
            self._client.ack(batch)
            self._client.commit(batch.batch_id)
        self._client.close()

    def _empty(self) -> bool:
        status = self._client.status()
        assert status is not None
        return status["groups"]["queued"] + status["groups"]["leased"] == 0


@pytest.fixture
def producer(world: World, consumer: Consumer) -> Iterator[Producer]:
    producer = Producer(world.url, consumer.trained)
    yield producer
    producer.stop.set()
    producer.join(timeout=READY_S)


@pytest.fixture
def consumer(world: World) -> Iterator[Consumer]:
    consumer = Consumer(world.url)
    yield consumer
    consumer.stop.set()
    consumer.join(timeout=READY_S)


def fill(world: World, names: list[str]) -> None:
    """Post new groups in one body until enough are queued; ``names`` grows by theirs."""
    missing = ENOUGH_QUEUED - world.status()["groups"]["queued"]
    if missing <= 0:
        return
    new = [f"g{len(names) + number}" for number in range(missing)]
    body = encode_batch([encode_group(small_group(name)) for name in new])
    answer = requests.post(
        f"{world.url}/v1/groups", data=body, headers={"Content-Type": BATCH_TYPE}, timeout=60
    )
    assert answer.status_code == 201, answer.text
    names += new


@pytest.mark.timeout(280)
def test_a_killed_api_loses_no_acked_group_and_trains_none_twice(
    world: World, producer: Producer, consumer: Consumer
) -> None:
    producer.start()
    consumer.start()
    for _ in range(CYCLES):
        process = world.start_api()
        before = len(producer.acked)
        wait_for(lambda before=before: len(producer.acked) > before)
        threading.Event().wait(world.rng.uniform(0.0, 0.3))
        kill(process)
    process = world.start_api()
    producer.stop.set()
    producer.join(timeout=READY_S)
    consumer.stop.set()
    consumer.join(timeout=READY_S)
    world.status()
    kill(process)
    counts = Counter(consumer.trained)
    assert set(counts) == set(producer.acked)
    assert set(counts.values()) == {1}


@pytest.mark.timeout(280)
def test_a_killed_sender_loses_no_acked_group_and_posts_none_twice(world: World, consumer: Consumer) -> None:
    api = world.start_api()
    consumer.start()
    started = world.folder / "sender.started"
    for cycle in range(CYCLES):
        started.unlink(missing_ok=True)
        victim = world.start_victim("victim_sender.py", f"run{cycle}")
        wait_for(started.exists)
        threading.Event().wait(world.rng.uniform(0.0, 0.1))
        kill(victim)
    consumer.stop.set()
    consumer.join(timeout=READY_S)
    world.status()
    kill(api)
    counts = Counter(consumer.trained)
    acked = (world.folder / "acked.txt").read_text().splitlines()
    assert len(acked) >= CYCLES
    assert set(acked) <= set(counts)
    # Those in flight at a kill may have been stored without being noted, but at most one a worker.
    assert len(counts) - len(set(acked)) <= WORKERS * CYCLES
    assert set(counts.values()) == {1}


@pytest.mark.timeout(280)
def test_a_killed_trainer_has_every_group_in_its_surviving_weights_once(world: World) -> None:
    api = world.start_api()
    started = world.folder / "trainer.started"
    register = {"trainer_id": "victim", "run": registration(4)}
    requests.post(f"{world.url}/v1/trainers", json=register, timeout=10).raise_for_status()
    names: list[str] = []
    for _ in range(CYCLES):
        fill(world, names)
        started.unlink(missing_ok=True)
        victim = world.start_victim("victim_trainer.py")
        wait_for(started.exists)
        threading.Event().wait(world.rng.uniform(0.0, 0.05))
        assert victim.poll() is None, "the queue was emptied before the kills were over"
        kill(victim)
    assert world.start_victim("victim_trainer.py").wait(timeout=100) == 0
    trained = json.loads((world.folder / "checkpoint.json").read_text())["trained"]
    world.status()
    kill(api)
    assert trained == names
