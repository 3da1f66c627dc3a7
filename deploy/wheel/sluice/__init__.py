"""Sluice: offline inference of large language models, in bulk. The programs, and rows of tables in and out."""
