"""Clients that are slow, silent, gone or too many hold nothing for long and keep nobody else waiting."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.api.support import ApiClient, group, serving


@pytest.fixture(scope="module")
def impatient() -> Iterator[ApiClient]:
    with serving(head_timeout_s=0.2, body_idle_s=0.2, body_total_s=0.5) as api:
        yield api


@contextmanager
def connected(api: ApiClient) -> Iterator[socket.socket]:
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        yield client


def all_received(client: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    received = b""
    while piece := client.recv(4096):
        received += piece
    return received


def healthy(client: socket.socket) -> None:
    """One whole request on a connection that stays open."""
    client.sendall(b"GET /healthz HTTP/1.1\r\nHost: api\r\n\r\n")
    received = b""
    while not received.endswith(b"}"):
        received += client.recv(4096)
    assert received.startswith(b"HTTP/1.1 200 ")


HEAD = b"POST /scored_data HTTP/1.1\r\nHost: api\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("begun", [b"", b"GET /status HTTP/1.1\r\nHos"])
def test_a_head_that_does_not_come_ends_the_connection(impatient: ApiClient, begun: bytes) -> None:
    with connected(impatient) as client:
        client.sendall(begun)
        assert all_received(client).startswith(b"HTTP/1.1 408 ")


def test_a_head_that_comes_byte_by_byte_ends_the_connection(impatient: ApiClient) -> None:
    with connected(impatient) as client:
        client.settimeout(0.05)
        received = b""
        for byte in b"GET /status HTTP/1.1\r\nX-Long: " + b"x" * 1000:
            try:
                client.sendall(bytes([byte]))
                received += client.recv(4096)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            if received:
                break
        assert received.startswith(b"HTTP/1.1 408 ")


def test_a_second_request_has_the_same_deadline(impatient: ApiClient) -> None:
    with connected(impatient) as client:
        healthy(client)
        client.sendall(b"GET /heal")
        assert all_received(client).startswith(b"HTTP/1.1 408 ")


def test_a_head_without_end_is_refused(impatient: ApiClient) -> None:
    with connected(impatient) as client:
        client.sendall(b"GET /status HTTP/1.1\r\nX-Long: " + b"x" * 30_000)
        assert client.recv(4096).startswith(b"HTTP/1.1 4")


def test_an_idle_connection_is_not_cut_off_between_requests(impatient: ApiClient) -> None:
    with connected(impatient) as idle:
        healthy(idle)
        # Another client's deadline passes meanwhile.
        test_a_second_request_has_the_same_deadline(impatient)
        healthy(idle)


def test_a_body_that_stops_is_a_408(impatient: ApiClient) -> None:
    refused = impatient.counts()["refused"]
    with connected(impatient) as client:
        client.sendall(HEAD + b'Content-Length: 1000\r\n\r\n{"tokens"')
        answer = all_received(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "wire.too_slow"
    assert impatient.counts()["refused"] == refused + 1


def test_a_body_that_trickles_for_too_long_is_a_408(impatient: ApiClient) -> None:
    with connected(impatient) as client:
        client.settimeout(0.05)
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        answer = b""
        while not answer:
            try:
                client.sendall(b"1\r\nx\r\n")
                answer = client.recv(4096)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_the_rest_of_a_refused_body_cannot_trickle_for_ever(impatient: ApiClient) -> None:
    """The answer was sent before the body came, and the rest of it is nobody's."""
    with connected(impatient) as client:
        client.sendall(b"POST /nothing HTTP/1.1\r\nHost: api\r\nOrigin: http://evil.example\r\n")
        client.sendall(b"Content-Length: 1000\r\n\r\n")
        assert all_received(client).startswith(b"HTTP/1.1 403 ")


def test_a_client_that_vanishes_while_its_body_is_read_leaves_nothing(impatient: ApiClient) -> None:
    received = impatient.counts()["received"]
    with connected(impatient) as client:
        client.sendall(HEAD + b'Content-Length: 1000\r\n\r\n{"tokens"')
    impatient.post("/scored_data", group(group_id="after"))
    assert impatient.counts()["received"] == received + 1


def test_slow_clients_keep_nobody_waiting(impatient: ApiClient) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connected(impatient)).sendall(b"GET /st")
        assert impatient.get("/status")["current_step"] == 0


def test_too_many_connections_are_told_to_come_again() -> None:
    with serving(max_connections=4) as api, ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(connected(api))
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: api\r\n\r\n")
            answer = client.recv(4096)
        assert answer.startswith(b"HTTP/1.1 503 ")


def test_bodies_that_are_read_at_once_are_bounded_together() -> None:
    with serving(max_pending_bytes=50_000, retry_after_s=7) as api, connected(api) as slow:
        slow.sendall(HEAD + b"Content-Length: 60000\r\n\r\n" + b" " * 40_000)
        body = json.dumps(group(messages=[[{"role": "user", "content": "x" * 20_000}]])).encode()
        while (answer := api.raw("POST", "/scored_data", body)).status_code == 200:
            pass
        assert (answer.status_code, answer.json()["code"]) == (503, "api.busy")
        assert answer.headers["Retry-After"] == "7"
        slow.close()
        while api.raw("POST", "/scored_data", body).status_code == 503:
            pass
