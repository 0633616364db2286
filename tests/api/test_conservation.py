"""Over HTTP, in any order of calls: every accepted group is in one place and is delivered at most once."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.api.support import ApiClient, group, registration


class ApiMachine(RuleBasedStateMachine):
    """Plays environments and a trainer; remembers what was accepted and what was delivered."""

    api: ApiClient

    @initialize()
    def start(self) -> None:
        self.api.raw("GET", "/reset_data")
        self.batch_size: int | None = None
        self.sizes: dict[str, int] = {}
        self.delivered: list[str] = []
        self.step = 0

    @rule(number=st.integers(0, 20), sequences=st.integers(1, 6), env_id=st.none() | st.integers(0, 2))
    def post(self, number: int, sequences: int, env_id: int | None) -> None:
        name = f"g{number}"
        body = group(sequences, group_id=name, env_id=env_id)
        assert self.api.post("/scored_data", body) == {"status": "received"}
        self.sizes.setdefault(name, sequences)

    @rule(batch_size=st.integers(1, 8))
    def register(self, batch_size: int) -> None:
        self.api.post("/register", registration(batch_size=batch_size))
        if batch_size != self.batch_size:
            self.step = 0
        self.batch_size = batch_size

    @rule(share=st.none() | st.just(0.5))
    def register_env(self, share: float | None) -> None:
        body = {"max_token_length": 9, "desired_name": "e", "weight": 1.0, "group_size": 2}
        self.api.post("/register-env", body | {"min_batch_allocation": share})

    @rule()
    def pull(self) -> None:
        answer: dict[str, Any] = self.api.get("/batch")
        for member in answer["batch"] or []:
            assert len(member["tokens"]) == self.sizes[member["group_id"]]
            self.delivered.append(member["group_id"])
        if answer["batch"]:
            assert sum(len(member["tokens"]) for member in answer["batch"]) == self.batch_size
            self.step += 1

    @rule(seconds=st.sampled_from([20.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.api.clock.now += seconds

    @invariant()
    def every_group_is_in_one_place(self) -> None:
        if not hasattr(self, "sizes"):
            return
        counts = self.api.counts()
        assert counts["received"] == len(self.sizes)
        assert counts["trained"] == len(self.delivered) == len(set(self.delivered))
        assert counts["leased"] == 0
        assert self.api.get("/status")["current_step"] == self.step


def test_no_order_of_calls_loses_or_repeats_a_group(api: ApiClient) -> None:
    class Machine(ApiMachine):
        pass

    Machine.api = api
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=15, stateful_step_count=20, deadline=None)
    )
