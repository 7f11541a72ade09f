"""Test the network of Services: connections go to ready backends."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import Cluster
from e2e.cluster.network import Backend, Network

SERVICE = "10.0.0.7:443"


@contextmanager
def greeter(greeting: bytes) -> Iterator[int]:
    """Run a server that sends a greeting to each client, and yield its port."""

    class Greet(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(greeting)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def read_all(connection: socket.socket) -> bytes:
    received = b""
    with connection:
        while more := connection.recv(100):
            received += more
    return received


def test_connections_to_a_service_go_to_ready_backends(tmp_path: Path) -> None:
    ready = {"first": True, "second": False}
    with greeter(b"first") as first, greeter(b"second") as second:
        network = Network(tmp_path / "services.sock")
        try:
            backends = [Backend(first, lambda: ready["first"]), Backend(second, lambda: ready["second"])]
            network.route(SERVICE, backends)
            port = network.listen(SERVICE)

            def connect() -> bytes:
                return read_all(socket.create_connection(("127.0.0.1", port), timeout=10))

            assert [connect(), connect()] == [b"first", b"first"]
            ready.update(first=False, second=True)
            Cluster.wait_for("the other backend", lambda: connect() == b"second")
            ready.update(second=False)
            Cluster.wait_for("no backend", lambda: connect() == b"")
        finally:
            network.close()


def test_the_api_server_connects_to_a_service_by_its_cluster_ip(tmp_path: Path) -> None:
    with greeter(b"hello") as port:
        network = Network(tmp_path / "services.sock")
        try:
            network.route(SERVICE, [Backend(port, lambda: True)])

            def connect(address: str) -> bytes:
                line = socket.socket(socket.AF_UNIX)
                line.settimeout(10)
                line.connect(str(network.socket))
                line.sendall(f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
                return read_all(line)

            assert connect(SERVICE) == b"HTTP/1.1 200 OK\r\n\r\nhello"
            assert connect("10.0.0.9:443").startswith(b"HTTP/1.1 502")
        finally:
            network.close()
