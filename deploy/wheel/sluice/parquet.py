"""Tables in Parquet in and out: a request of each row, and an answer beside each row.

    sluice-parquet run in.parquet -o out.parquet --prompt 'Translate: {text}' --model DIR [flags of `sluice run`]
    sluice-parquet requests in.parquet --prompt 'Translate: {text}' >requests.jsonl
    sluice-parquet answers in.parquet answers.jsonl -o out.parquet

Row N, counted from 0 over the whole file, is the request with the custom_id "row-N". Answers are taken in the order of the
rows, as `sluice run` and `sluice results` write them, and each row has to have its own. A table is read row group by row
group, and one group with its answers is all that is in memory.
"""

import argparse
import json
import os
import string
import subprocess
import sys

from sluice import programs

ROWS_AT_ONCE = 1024  # of prompts that are made of one read


class InputError(Exception):
    """A wrong table, template or file of answers; says which, where, and what to do."""


def _pyarrow():
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError("pyarrow is missing; install it: pip install 'sluice[parquet]'") from None
    return pyarrow


def _open(path):
    arrow = _pyarrow()
    try:
        return arrow.parquet.ParquetFile(path)
    except (OSError, arrow.ArrowInvalid) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}") from None


def template_parts(template, schema):
    """Returns [(text, column or None), ...] of a template such as 'Translate: {text}'. A brace is written twice."""
    arrow = _pyarrow()
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"--prompt: {error}; a brace that is meant as such is written twice") from None
    parts = []
    for text, column, form, conversion in parsed:
        if column is not None:
            if form or conversion or column not in schema.names:
                raise InputError(f"--prompt: there is no column {{{column}{'!' + conversion if conversion else ''}"
                                 f"{':' + form if form else ''}}}; the columns are {', '.join(schema.names)}")
            kind = schema.field(column).type
            if arrow.types.is_nested(kind) or arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind):
                raise InputError(f"--prompt: column {column} is {kind}; text, numbers, truth values and times can be in a "
                                 "prompt")
        parts.append((text, column))
    if not any(column for _, column in parts):
        raise InputError("--prompt: no column is named; write one as {column}")
    return parts


def requests(path, template):
    """Yields a line of JSON for each row. A row with a null in a named column gets no prompt, and so an error for an
    answer."""
    table = _open(path)
    parts = template_parts(template, table.schema_arrow)
    columns = sorted({column for _, column in parts if column})
    row = 0
    for batch in table.iter_batches(batch_size=ROWS_AT_ONCE, columns=columns):
        values = {column: batch.column(column).to_pylist() for column in columns}
        for i in range(batch.num_rows):
            prompt = None
            if all(values[column][i] is not None for column in columns):
                prompt = "".join(text + (str(values[column][i]) if column else "") for text, column in parts)
            yield json.dumps({"custom_id": f"row-{row}", "prompt": prompt}, ensure_ascii=False)
            row += 1


def _answer(path, number, line):
    """Returns (custom_id, the new columns' values) of a line of answers."""
    try:
        result = json.loads(line)
        error = result["error"]
        if error:
            return result["custom_id"], (None, None, None, None, error["message"])
        body = result["response"]["body"]
        choice, usage = body["choices"][0], body["usage"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        return result["custom_id"], (text, choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"], None)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path}, line {number}: no answer as sluice writes it ({error!r}); make the file anew") from None


def join(source, answers, target, prefix=""):
    """Writes `target`: the rows of `source` with the columns answer, finish_reason, prompt_tokens, completion_tokens and
    error, whose names begin with `prefix`. The file takes its place when it is whole."""
    arrow = _pyarrow()
    table = _open(source)
    schema = table.schema_arrow
    fields = [arrow.field(prefix + name, kind) for name, kind in (
        ("answer", arrow.large_string()), ("finish_reason", arrow.string()), ("prompt_tokens", arrow.int64()),
        ("completion_tokens", arrow.int64()), ("error", arrow.string()))]
    for field in fields:
        if field.name in schema.names:
            raise InputError(f"{source} has a column {field.name} already; --prefix NAME- gives the new ones other names")
        schema = schema.append(field)
    unfinished = f"{target}.unfinished"
    try:
        with open(answers, encoding="utf-8") as lines, arrow.parquet.ParquetWriter(unfinished, schema) as writer:
            first = 0  # row of the group
            for group in range(table.num_row_groups):
                rows = table.read_row_group(group)
                new = []
                for row in range(first, first + rows.num_rows):
                    line = lines.readline()
                    if not line:
                        raise InputError(f"{answers} ends before row {row}; wait until the job has ended, and write it anew")
                    custom_id, values = _answer(answers, row + 1, line)
                    if custom_id != f"row-{row}":
                        raise InputError(f"{answers}, line {row + 1}: custom_id is {custom_id!r}, not 'row-{row}'; the answers "
                                         f"have to be those of all rows of {source}, in order")
                    new.append(values)
                first += len(new)
                for i, field in enumerate(fields):
                    rows = rows.append_column(field, arrow.array([values[i] for values in new], field.type))
                writer.write_table(rows, row_group_size=max(1, rows.num_rows))
            if lines.readline():
                raise InputError(f"{answers} has more lines than {source} has rows, {first}: they are another table's")
        os.replace(unfinished, target)
    except OSError as error:
        raise InputError(f"{error.filename or target}: {error.strerror or error}") from None
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)


def run(source, target, template, prefix, flags):
    """Answers each row by `sluice run`. Stopped, it goes on where it was when the same command is given again."""
    asked, answered = f"{target}.requests.jsonl", f"{target}.answers.jsonl"
    try:
        with open(asked, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in requests(source, template))
    except OSError as error:
        raise InputError(f"{asked}: {error.strerror}") from None
    code = subprocess.call([programs.path("sluice"), "run", "-i", asked, "-o", answered, *flags])
    if code not in (0, 3):  # 3: no row has an answer, each has its error
        return code
    join(source, answered, target, prefix)
    os.remove(asked)
    os.remove(answered)
    return code


def main(words=None):
    parser = argparse.ArgumentParser(prog="sluice-parquet", description=__doc__.split("\n\n")[0],
                                     epilog=__doc__.split("\n\n", 1)[1], formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="answer each row; flags that are not listed go to sluice run", allow_abbrev=False)
    two = commands.add_parser("requests", help="write a request for each row to stdout")
    three = commands.add_parser("answers", help="put answers beside their rows")
    for command in (one, two, three):
        command.add_argument("input", metavar="IN.parquet")
    three.add_argument("answers", metavar="ANSWERS.jsonl")
    for command in (one, two):
        command.add_argument("--prompt", required=True, help="what to ask, with {column} where a row's value goes")
    for command in (one, three):
        command.add_argument("-o", "--output", required=True, metavar="OUT.parquet")
        command.add_argument("--prefix", default="", help="what the new columns' names begin with")
    given, flags = parser.parse_known_args(words)
    if flags and given.command != "run":
        parser.error(f"unknown: {' '.join(flags)}")
    try:
        if given.command == "run":
            return run(given.input, given.output, given.prompt, given.prefix, flags)
        if given.command == "requests":
            for line in requests(given.input, given.prompt):
                sys.stdout.write(line + "\n")
            sys.stdout.flush()
        else:
            join(given.input, given.answers, given.output, given.prefix)
        return 0
    except InputError as error:
        print(f"sluice-parquet: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read has gone
        return 1


if __name__ == "__main__":
    sys.exit(main())
