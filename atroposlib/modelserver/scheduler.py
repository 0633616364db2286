"""The worker thread: forms batches of waiting requests, and pauses between steps when told to.

Scheme. Every step takes the oldest waiting sequence and as many others of its kind as fit into one padded
forward pass: those that want one token only (scoring) make a batch of their own, those that go on are joined
to the running batch, which then gets one more token. So new requests join a generation that is under way, a
long generation holds up nobody for more than a step, and the order of arrival is kept within a kind.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from atroposlib.modelserver.admission import BatchLimits, choose_batch
from atroposlib.modelserver.work import Job, Sequence

if TYPE_CHECKING:
    from atroposlib.modelserver.engine import Engine, RunningBatch

PauseMode = Literal["abort", "wait", "keep"]
Result = TypeVar("Result")
STOPPED = "the server is shutting down"
logger = logging.getLogger(__name__)


class StoppedError(RuntimeError):
    """The server is shutting down, so a request will not be answered."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    """A function to be run between two steps, and the future of its result."""

    function: Callable[[], Result]
    future: Future[Result] = field(default_factory=Future)

    def run(self) -> None:
        """Run it and settle the future, unless nobody waits for it any more."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.function())
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for the future
            self.future.set_exception(error)


class Scheduler:
    """Owns the engine's thread. Every public method may be called from any thread."""

    def __init__(self, engine: Engine, limits: BatchLimits) -> None:
        self.engine = engine
        self._limits = limits
        self._changed = threading.Condition()
        self._waiting: deque[Sequence] = deque()
        self._held: deque[Sequence] = deque()
        self._calls: deque[Call[Any]] = deque()
        self._drained: list[Future[None]] = []
        self._live: set[Job] = set()
        self._running: RunningBatch | None = None
        self._paused = False
        self._frozen = False
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    @property
    def paused(self) -> bool:
        """Whether new requests wait for :meth:`resume`."""
        return self._paused

    @property
    def healthy(self) -> bool:
        """Whether the worker runs."""
        return self._thread.is_alive() and not self._stopping

    def start(self) -> None:
        """Start the worker."""
        self._thread.start()

    def stop(self) -> None:
        """End the worker after the step it is in; requests under way fail with StoppedError."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            jobs = list(self._live)
        for job in jobs:
            job.error = StoppedError(STOPPED)
            self._finish(job)

    def join(self, timeout_s: float) -> None:
        """Wait for the worker to end."""
        self._thread.join(timeout_s)

    def submit(self, job: Job) -> None:
        """Queue ``job``; its ``done`` is called when it has finished, failed or been aborted."""
        with self._changed:
            self._live.add(job)
            (self._held if self._paused else self._waiting).extend(job.sequences)
            self._changed.notify_all()
        if self._stopping:
            job.error = StoppedError(STOPPED)
            self._finish(job)

    def cancel(self, job: Job) -> None:
        """Forget ``job``, whose ``done`` is not called any more."""
        with self._changed:
            job.cancelled = True
            self._live.discard(job)
            self._changed.notify_all()

    def call(self, function: Callable[[], Result]) -> Future[Result]:
        """Run ``function`` on the worker between two steps, paused or not."""
        call = Call(function)
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()
        self._give_up_if_stopping()
        return call.future

    def pause(self, mode: PauseMode) -> Future[None]:
        """Hold new requests, and the running ones as vLLM does.

        ``abort`` ends them as they are with finish_reason abort, ``wait`` lets them finish, ``keep`` freezes
        them until :meth:`resume`. The future is done when no step is under way any more.
        """
        with self._changed:
            self._paused = True
        if mode == "abort":
            return self.call(self._abort)
        if mode == "keep":
            return self.call(self._freeze)
        drained: Future[None] = Future()
        with self._changed:
            self._frozen = False
            self._drained.append(drained)
            self._changed.notify_all()
        self._give_up_if_stopping()
        return drained

    def resume(self) -> None:
        """Go on with what was frozen and take the requests that waited."""
        with self._changed:
            self._paused = self._frozen = False
            self._waiting.extend(self._held)
            self._held.clear()
            self._changed.notify_all()

    def _freeze(self) -> None:
        # Not when somebody has resumed in the meantime.
        self._frozen = self._paused

    def _abort(self) -> None:
        with self._changed:
            jobs = list(self._live)
            self._waiting.clear()
            self._held.clear()
            self._frozen = False
        self._running = None
        for job in jobs:
            for sequence in job.sequences:
                sequence.finish_reason = sequence.finish_reason or "abort"
            self._finish(job)

    def _work(self) -> None:
        try:
            while self._wait():
                while self._calls:
                    self._calls.popleft().run()
                if not self._frozen:
                    self._step()
                self._tell_drained()
        finally:
            # Reached by a mistake of our own too: nobody may wait for a worker that is gone.
            self.stop()
            self._give_up_calls()

    def _give_up_if_stopping(self) -> None:
        # The worker may have given up its calls already and still be alive for a moment.
        if self._stopping:
            self._give_up_calls()

    def _give_up_calls(self) -> None:
        with self._changed:
            futures = [call.future for call in self._calls] + self._drained
            self._calls.clear()
            self._drained.clear()
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_exception(StoppedError(STOPPED))

    def _wait(self) -> bool:
        """Sleep until there is something to do; False when that is to stop."""
        with self._changed:
            self._changed.wait_for(self._has_work)
            if self._running is None and not self._calls and not self._frozen:
                self._gather()
            return not self._stopping

    def _gather(self) -> None:
        """Wait while requests keep coming: those sent together arrive a little apart and make one batch."""
        seen = 0
        while seen < len(self._waiting) < self._limits.max_num_seqs and not self._stopping:
            seen = len(self._waiting)
            self._changed.wait(self._limits.batch_wait_s)

    def _has_work(self) -> bool:
        if self._stopping or self._calls:
            return True
        if self._waiting or self._running:
            return not self._frozen
        return bool(self._drained)

    def _tell_drained(self) -> None:
        with self._changed:
            if self._waiting or self._running:
                return
            drained, self._drained = self._drained, []
        for future in drained:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _step(self) -> None:
        """One forward pass of waiting prompts, if any, and one token for the running batch."""
        taken = self._take()
        fresh = self._guard(taken, lambda: self.engine.prefill(taken)) if taken else None
        batches = [self._running, fresh]
        members = [sequence for batch in batches if batch for sequence in batch.sequences]
        self._running = self._guard(members, lambda: self.engine.merge(batches))
        if (running := self._running) is not None:
            self._guard(running.sequences, lambda: self.engine.decode(running))
            self._running = self._guard(running.sequences, lambda: self.engine.merge([running]))

    def _guard(self, sequences: list[Sequence], function: Callable[[], Result]) -> Result | None:
        """Run a part of a step; its failure is that of the requests it was for. Tells the finished ones."""
        jobs = {sequence.job for sequence in sequences}
        result: Result | None = None
        try:
            result = function()
        except Exception as error:  # one bad batch must not end the server
            logger.exception("a batch of %d requests failed", len(jobs))
            for job in jobs:
                job.error = error
        for job in jobs:
            if job.finished:
                self._finish(job)
        return result

    def _finish(self, job: Job) -> None:
        with self._changed:
            if job not in self._live:
                return
            self._live.remove(job)
        job.done(job)

    def _take(self) -> list[Sequence]:
        """Remove from the queue what the next forward pass of prompts takes."""
        with self._changed:
            waiting = [sequence for sequence in self._waiting if not sequence.finished]
            taken = choose_batch(waiting, self._running.sequences if self._running else [], self._limits)
            chosen = set(taken)
            self._waiting = deque(sequence for sequence in waiting if sequence not in chosen)
        return taken
