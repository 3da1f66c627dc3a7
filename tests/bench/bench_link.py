#!/usr/bin/env python3
"""Links between workers beside iperf3 on the same path.

    bench_link.py [--bin build/release/bin] [--rounds 5] [--paths loopback,bridge]

On each path (this machine's loopback; two network namespaces on a bridge, which needs root)
each round runs iperf3 (one TCP stream, blocks of 1 MiB) and link_bench, whose frames are 1 MiB
of activations, in float32 and bfloat16, by a TCP connection, as links go by default, and in
gRPC's stream, one after the other. Prints medians with spread, and adds each path to
tests/bench/results/link.json. Needs iperf3. Run it on a machine that does nothing else.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import time

from machine import machine, record_case
from small_machines import Network, SmallMachine

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = 3
ROWS, COLS = 64, 4096  # 1 MiB of float32


def summary(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def iperf(send, receive, address):
    server = subprocess.Popen([*receive, "iperf3", "-s", "-1", "-B", address, "-p", "5999"],
                              stdout=subprocess.DEVNULL)
    time.sleep(0.3)
    out = subprocess.run([*send, "iperf3", "-c", address, "-p", "5999", "-l", "1M", "-J", "-t",
                          str(SECONDS)], check=True, capture_output=True, text=True).stdout
    server.wait()
    return json.loads(out)["end"]["sum_received"]["bits_per_second"] / 8


class Receiver:
    def __init__(self, bench, receive, address):
        self.process = subprocess.Popen([*receive, bench, "receive", address], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.bench = bench
        self.address = f"{address}:{self.process.stdout.readline().strip()}"

    def run(self, send, dtype, link, rows=ROWS):
        self.process.stdin.write(f"{COLS} {dtype} {link}\n")
        self.process.stdin.flush()
        epoch = self.process.stdout.readline().strip()
        return json.loads(subprocess.run(
            [*send, self.bench, "send", self.address, epoch, str(rows), str(COLS), str(SECONDS),
             dtype, link], check=True, capture_output=True, text=True).stdout)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def measure(bench, rounds, send, receive, address):
    receiver = Receiver(bench, receive, address)
    iperf3, runs = [], {}
    for _ in range(rounds):
        iperf3.append(iperf(send, receive, address))
        for link in ("tcp", "grpc"):
            for dtype in ("float32", "bfloat16"):
                runs.setdefault((link, dtype), []).append(receiver.run(send, dtype, link))
    receiver.close()
    figures = {"iperf3 GB/s": summary([v / 1e9 for v in iperf3])}
    for (link, dtype), run in runs.items():
        rates = [r["bytes_per_second"] for r in run]
        figures[f"{link}, {dtype} frames GB/s"] = summary([v / 1e9 for v in rates])
        if dtype == "float32":
            figures[f"{link}, share of iperf3"] = summary([a / b for a, b in zip(rates, iperf3)])
            figures[f"{link}, hop, microseconds"] = summary([r["hop_seconds"] * 1e6 for r in run])
    figures["bytes a row, bfloat16 over float32"] = (
        runs["tcp", "bfloat16"][0]["bytes_per_row"] / runs["tcp", "float32"][0]["bytes_per_row"])
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--rounds", type=int, default=5)
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
            figures = measure(bench, args.rounds, send, receive, address)
        print(path)
        for name, value in figures.items():
            print(f"  {name:36} " + (f"median {value['median']:9.3f}   {value['least']:9.3f} .. "
                                     f"{value['most']:9.3f}" if isinstance(value, dict)
                                     else f"{value:16.3f}"))
        if args.result:
            record_case(args.result, path, figures, info)


if __name__ == "__main__":
    main()
