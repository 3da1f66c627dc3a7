#!/usr/bin/env python3
"""Links between workers beside iperf3 on the same path, and what TLS costs them.

    bench_link.py [--bin build/release/bin] [--rounds 5] [--seconds 3] [--paths loopback,bridge]

On each path (this machine's loopback; two network namespaces on a bridge, which needs root)
each round runs iperf3 (one TCP stream, blocks of 1 MiB) and link_bench, whose frames are 1 MiB
of activations, in float32 and bfloat16, by a TCP connection, as links go by default, in gRPC's
stream, and in gRPC's stream with mutual TLS, one after the other; and frames of one row, 16 KiB,
as of a step that decodes one sequence. Prints medians with spread, and adds each path to
tests/bench/results/link.json. Needs iperf3. Run it on a machine that does nothing else.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time

from machine import machine, record_case
from small_machines import Network, SmallMachine

HERE = os.path.dirname(os.path.abspath(__file__))
MAKE_CERTIFICATES = os.path.join(HERE, "..", "..", "deploy", "tls", "make.sh")
ROWS, COLS = 64, 4096  # 1 MiB of float32
CASES = (("float32", ROWS), ("bfloat16", ROWS), ("float32", 1))


def summary(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def iperf(send, receive, address, seconds):
    server = subprocess.Popen([*receive, "iperf3", "-s", "-1", "-B", address, "-p", "5999"],
                              stdout=subprocess.DEVNULL)
    time.sleep(0.3)
    out = subprocess.run([*send, "iperf3", "-c", address, "-p", "5999", "-l", "1M", "-J", "-t",
                          str(seconds)], check=True, capture_output=True, text=True).stdout
    server.wait()
    return json.loads(out)["end"]["sum_received"]["bits_per_second"] / 8


class Receiver:
    def __init__(self, bench, receive, address, tls=()):
        self.process = subprocess.Popen([*receive, bench, "receive", address, *tls], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.bench, self.tls = bench, tls
        self.address = f"{address}:{self.process.stdout.readline().strip()}"

    def run(self, send, dtype, link, rows, seconds):
        self.process.stdin.write(f"{COLS} {dtype} {link}\n")
        self.process.stdin.flush()
        epoch = self.process.stdout.readline().strip()
        return json.loads(subprocess.run(
            [*send, self.bench, "send", self.address, epoch, str(rows), str(COLS), str(seconds),
             dtype, link, *self.tls], check=True, capture_output=True, text=True).stdout)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def measure(bench, rounds, seconds, send, receive, address):
    iperf3, runs = [], {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([MAKE_CERTIFICATES, folder, address], check=True, capture_output=True)
        files = [os.path.join(folder, name) for name in (f"{address}.pem", f"{address}.key", "ca.pem")]
        receivers = {"clear": Receiver(bench, receive, address),
                     "TLS": Receiver(bench, receive, address, files)}
        for _ in range(rounds):
            iperf3.append(iperf(send, receive, address, seconds))
            for name, link, receiver in (("tcp", "tcp", "clear"), ("grpc", "grpc", "clear"),
                                         ("grpc with TLS", "grpc", "TLS")):
                for dtype, rows in CASES:
                    runs.setdefault((name, dtype, rows), []).append(
                        receivers[receiver].run(send, dtype, link, rows, seconds))
        for receiver in receivers.values():
            receiver.close()
    figures = {"iperf3 GB/s": summary([v / 1e9 for v in iperf3])}
    for (link, dtype, rows), run in runs.items():
        if rows == 1:
            figures[f"{link}, frames of 16 KiB a second"] = summary([r["frames_per_second"] for r in run])
            continue
        rates = [r["bytes_per_second"] for r in run]
        figures[f"{link}, {dtype} frames GB/s"] = summary([v / 1e9 for v in rates])
        if dtype == "float32":
            figures[f"{link}, frames of 1 MiB a second"] = summary([r["frames_per_second"] for r in run])
            figures[f"{link}, share of iperf3"] = summary([a / b for a, b in zip(rates, iperf3)])
            figures[f"{link}, hop, microseconds"] = summary([r["hop_seconds"] * 1e6 for r in run])
    figures["bytes a row, bfloat16 over float32"] = (
        runs["tcp", "bfloat16", ROWS][0]["bytes_per_row"] / runs["tcp", "float32", ROWS][0]["bytes_per_row"])
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="for each figure of a round, from 1 on")
    parser.add_argument("--paths", default="loopback,bridge")
    parser.add_argument("--result", default=os.path.join(HERE, "results", "link.json"))
    args = parser.parse_args()
    bench = os.path.join(args.bin, "link_bench")
    info = machine(args.bin) if args.result else {}
    for path in args.paths.split(","):
        with contextlib.ExitStack() as stack:
            send, receive, address = [], [], "127.0.0.1"
            if path == "bridge":
                network = stack.enter_context(Network())
                ends = [stack.enter_context(SmallMachine(f"link{i}", network=network))
                        for i in range(2)]
                send, receive = ends[0].command([]), ends[1].command([])
                address = ends[1].address
            figures = measure(bench, args.rounds, args.seconds, send, receive, address)
        print(path)
        for name, value in figures.items():
            print(f"  {name:42} " + (f"median {value['median']:9.3f}   {value['least']:9.3f} .. "
                                     f"{value['most']:9.3f}" if isinstance(value, dict)
                                     else f"{value:16.3f}"))
        if args.result:
            record_case(args.result, path, figures, info)


if __name__ == "__main__":
    main()
