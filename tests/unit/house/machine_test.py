"""Tests what recorded figures say of the machine that they were measured on."""

import os
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "bench"))
import machine  # noqa: E402

ZEN4 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
flags\t\t: fpu avx2 avx512f avx512_bf16

processor\t: 1
cpu family\t: 99
"""


class MachineTest(unittest.TestCase):

    def processor(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".cpuinfo") as f:
            f.write(text)
            f.flush()
            return machine.processor(f.name)

    def test_a_processor_is_told_by_family_model_and_stepping(self):
        self.assertEqual(self.processor(ZEN4), {
            "cpu": "AMD EPYC", "family": 25, "model": 17, "stepping": 1,
            "isa": ["avx2", "avx512f", "avx512_bf16"]})

    def test_an_arm_processor_has_part_and_implementer(self):
        text = "processor\t: 0\nFeatures\t: fp asimd i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
        self.assertEqual(self.processor(text), {
            "isa": ["asimd", "i8mm"], "implementer": "0x41", "part": "0xd40"})

    def test_shares_are_of_the_measured_peaks(self):
        info = {"peak": {"f32 GFLOP/s": {"median": 100}, "bf16 GFLOP/s": {"median": 200},
                         "disk read GB/s": {"median": 4}}}
        self.assertEqual(machine.shares(info, 2, flops=100e9, disk_read=4e9), {
            "share of the peak, bf16 GFLOP/s": 0.25, "share of the peak, disk read GB/s": 0.5})
        del info["peak"]["bf16 GFLOP/s"]
        self.assertEqual(machine.shares(info, 2, flops=100e9),
                         {"share of the peak, f32 GFLOP/s": 0.5})

    def test_operations_of_a_decoder(self):
        shape = {"hidden_size": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
                 "num_hidden_layers": 3, "intermediate_size": 8, "vocab_size": 10}
        # A layer: q and out 16 each, k and v 8 each, three of 32.
        self.assertEqual(machine.model_flops(shape, 5, 2, 1), 2 * (3 * 144 * 6 + 40 * 2))

    def test_the_line_at_the_head_of_a_text_names_all(self):
        line = machine.headline({"cpu": "AMD EPYC", "family": 25, "model": 17, "stepping": 1,
                                 "cores": 2, "load": 0.5, "commit": "abc",
                                 "peak": {"f32 GFLOP/s": {"median": 100}}})
        self.assertEqual(line, "AMD EPYC, family 25 model 17 stepping 1, 2 cores, load 0.50, "
                               "commit abc; peak: f32 GFLOP/s 100.0")


if __name__ == "__main__":
    unittest.main()
