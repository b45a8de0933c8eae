"""Infer a schema from a table; code a table's rows by a schema."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from silomix.errors import DataError, DataWarning, SettingsError, cell, warn
from silomix.families import KINDS
from silomix.model import columns, reading
from silomix.model.schema import MISSING_LEVEL, Missing, Schema, Shard, Variable
from silomix.model.sentences import (
    MOST_LISTED,
    at_least,
    check_mapping,
    did_you_mean,
    first_of,
    listing,
    one_of,
    plural,
    quoted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import narwhals as nw

    from silomix.kernels.arrays import Ints
    from silomix.model.reading import Cells, Table

T = TypeVar("T")

logger = logging.getLogger("silomix")

# The one level of a variable that no row of the table has: every cell of it is missing.
UNOBSERVED_LEVEL = "(unobserved)"

# Advice on an unknown level, while the study can still change, and afterwards.
OF_OPEN_STUDY = "add it to the {schema} of all silos, or recode the column"
OF_POSTERIOR = "recode it, or fit again with rows that have it"

# Frequencies that add up to more rows are refused.
MOST_ROWS = 10**9


def load(
    table: Table,
    *,
    schema: Schema | None = None,
    frequency: str | None = None,
    where: str = "the table",
    **options: Any,
) -> Shard:
    """Read and check a table; return its rows as level codes and numbers.

    Parameters
    ----------
    table : a frame or the path of a file, as for `read_table`.
    schema : the variables that the table must have; inferred from the table by default.
    frequency : the column with the number of rows that each row stands for.
    where : how messages refer to the table, such as the name of its silo.
    options : `silo` and others of `infer_schema`, where no schema is given.
    """
    for name in ("variables", "exclude", "kinds", "bins", "na_values"):
        if schema is not None and options.get(name) is not None:
            raise SettingsError(f"give schema or {name}, not both: a schema names its variables")
    frame = expand(table, frequency, where=where)
    if frequency is not None:
        where = f"{where}, rows repeated by {frequency!r}"
    if schema is None:
        schema = infer_schema(frame, where=where, **options)
        return encode(frame, schema, where=where, look_for_codes=False)
    return encode(frame, schema, where=where, advice=OF_OPEN_STUDY)


def expand(table: Table, frequency: str | None, *, where: str = "the table") -> nw.DataFrame[Any]:
    """Repeat each row as often as its column `frequency` says, if there is one.

    That column is dropped; a row with a count of zero disappears.
    """
    frame = reading.read_table(table)
    if frequency is None:
        return frame
    label = f"{where}: column {frequency!r}"
    cells = reading.read_cells(reading.find_column(frame, frequency, where=where), label)
    is_count = np.array([text.isdecimal() for text in cells.texts] + [False])
    invalid = np.flatnonzero(~is_count[cells.codes])
    if invalid.size:
        code = cells.codes[invalid[0]]
        text = "a missing cell" if code < 0 else repr(cells.texts[code])
        example = cell(text, first_of(invalid.size))
        advice = "a count of rows is whole, zero or more: correct it or remove the row"
        raise DataError(f"{label} has {example} in data row {invalid[0] + 1}; {advice}")
    # a number of any length is read; cut short, the sum cannot overflow
    counts = np.array([min(int(text), MOST_ROWS + 1) for text in cells.texts], dtype=np.int64)
    repeats = counts[cells.codes]
    if repeats.sum() > MOST_ROWS:
        raise DataError(f"{label}: the counts add up to more than {MOST_ROWS} rows: correct them")
    return frame.drop(str(frequency))[np.repeat(np.arange(len(frame)), repeats)]


def infer_schema(
    table: Table,
    *,
    silo: str | None = None,
    variables: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    kinds: Mapping[str, str] | None = None,
    bins: Mapping[str, int] | None = None,
    missing: Missing = "marginalise",
    na_values: Any = None,
    where: str = "the table",
) -> Schema:
    """Infer the variables of a table, over the rows of all its silos.

    Columns of numbers are "gaussian", unless they have ten or fewer distinct values, all whole, or
    two values; all other columns are categorical. A log line names those taken as numbers.
    If a fifth of a column's numbers are equal, such as 0, one variable indicates them, and another
    has the other numbers.

    A pandas categorical, a polars Enum or an ordered Arrow dictionary declares its levels:
    their order is kept, and so are those that no row has. Other columns have the levels that
    are observed, in numeric order when all are numbers, otherwise in lexical order. A column
    that is missing in every row becomes a variable with the one level `UNOBSERVED_LEVEL`
    (`MISSING_LEVEL` under `missing="level"`), which has no effect, and a warning.

    Parameters
    ----------
    table : a frame or the path of a file, as for `read_table`.
    silo : the column that names the silos, if there is one; it is not a variable.
    variables, exclude : the columns to use, or to leave out; by default all but the silo column.
    kinds : by column, "categorical", "gaussian", "log-gaussian" (the logarithm is normal within a
        cluster), "poisson" (counts), "negative-binomial" (counts that vary more) or another word of
        `silomix.families.KINDS`; numbers declared so are not split.
    bins : by column of numbers, how many levels to cut them into, at their quantiles.
    missing : "marginalise", or "level" to give `MISSING_LEVEL` to variables with missing cells.
    na_values : other texts for a missing cell, as for `missing_texts`.
    where : how messages refer to the table.
    """
    one_of("missing", missing, ("marginalise", "level"))
    frame = reading.read_table(table)
    names = reading.choose_variables(frame, variables, exclude, silos=silo, where=where)
    _check_rows(frame, 2, where)
    kinds = {str(name): word for name, word in check_mapping("kinds", kinds, "column").items()}
    bins = {str(name): count for name, count in check_mapping("bins", bins, "column").items()}
    _check_declared(kinds, bins, names, where)
    blanks = reading.missing_texts(na_values, frame.columns)
    inferred: list[Variable] = []
    odd: dict[str, dict[str, str]] = {}

    def infer(name: str) -> None:
        column, label = frame.get_column(name), f"{where}: column {name!r}"
        cells = reading.read_cells(column, label, blanks[name])
        levels = reading.declared_levels(frame, name, blanks[name])
        if name in bins:
            numbers = reading.read_numbers(cells, label)
            new = [columns.cut_variable(numbers, name, bins[name], label)]
        else:
            new = _infer_column(column, cells, levels, kinds.get(name), label)
        is_number = name in bins or not KINDS[new[-1].kind].has_levels
        is_guess = levels is None and name not in kinds
        odd[name] = columns.suspect(name, cells, is_number=is_number, is_guess=is_guess)
        if missing == "level":
            odd[name].pop("ticks", None)
        full = [_with_missing(variable, cells, missing) for variable in new]
        inferred.extend(replace(variable, na_values=blanks[name]) for variable in full)

    try:
        _for_each(infer, names)
    finally:  # with the errors, so that all can be put right at once
        columns.warn_of(odd, where)
    inferred.sort(key=lambda variable: list(KINDS).index(variable.kind))
    if guess := columns.guess_told(inferred, kinds, "kinds"):
        logger.info(guess)
    return Schema(tuple(inferred), missing)


def encode(
    table: Table,
    schema: Schema,
    *,
    where: str = "the table",
    advice: str = OF_POSTERIOR,
    look_for_codes: bool = True,
) -> Shard:
    """Code all rows of a table by a schema, as level codes and numbers.

    One error names all columns that do not fit.

    Parameters
    ----------
    table : a frame or the path of a file, as for `read_table`; one row is enough, and columns
        that the schema does not name are ignored.
    schema : the variables and their levels.
    where : how messages refer to the table, such as the name of its silo.
    advice : what to do with a level that the schema lacks.
    look_for_codes : warn of numbers that may stand for missing cells; not needed where the schema
        was inferred from these rows.
    """
    if schema.of_parameters:
        raise DataError(
            f"{where}: rows cannot be read here: the study knows parameters of clusters that were "
            "sampled elsewhere, but not the model of a row. Compute P(cluster | row) with the "
            "density of your own model, at posterior.weights and posterior.parameters"
        )
    frame = reading.read_table(table)
    reading.check_columns([v.column for v in schema.variables], frame.columns, where)
    _check_rows(frame, 1, where)
    kind = np.min_scalar_type(int(schema.sizes.max(initial=0)))
    codes = np.empty((len(frame), len(schema.categories)), dtype=kind)
    numbers = np.empty((len(frame), len(schema.numbers)))
    odd: dict[str, str] = {}

    def read(numbered: tuple[int, Variable]) -> None:
        place, variable = numbered
        label = f"{where}: column {variable.column!r}"
        cells = reading.read_cells(frame.get_column(variable.column), label, variable.na_values)
        if variable.levels:
            cells = columns.level_cells(cells, variable, label)
            codes[:, place] = _level_codes(cells, variable, schema.missing, label, advice)
            return
        if cells.missing.all():
            _warn_missing_in_full(label)
        clause = columns.like_missing(variable.column, cells, is_number=True)
        if look_for_codes and clause:
            odd[variable.column] = clause
        numbers[:, place] = columns.in_units(reading.read_numbers(cells, label), variable, label)

    _for_each(read, [*enumerate(schema.categories), *enumerate(schema.numbers)])
    if odd:
        means = "taken as they stand; if they mean a missing cell, leave it empty"
        _warn(f"{where}: {listing([*odd.values()])}: {means}")
    return Shard(schema, codes, numbers if schema.numbers else None)


def _for_each(read: Callable[[T], None], items: Iterable[T]) -> None:
    """Read each item; one error lists all that are refused."""
    refused = []
    for item in items:
        try:
            read(item)
        except DataError as error:
            refused.append(error)
    if refused:
        named = {key: value for error in refused for key, value in error.settings.items()}
        # of one column there may be two variables
        raise DataError("\n".join(dict.fromkeys(str(e.args[0]) for e in refused)), **named)


def _check_declared(
    kinds: Mapping[str, str], bins: Mapping[str, int], names: Sequence[str], where: str
) -> None:
    for setting, declared in {"kinds": kinds, "bins": bins}.items():
        for name in declared:
            if name not in names:
                hint = did_you_mean(name, names) or f"; they are {quoted(names)}"
                text = f"{{{setting}}} names {name!r}, which is not among the variables{hint}"
                raise SettingsError(text, **{setting: None})
    for name, word in kinds.items():
        one_of("kinds", word, columns.declared_words(), f" of {name!r}")
    if list(kinds.values()).count("gaussian-full") == 1:
        text = f"{where}: a single column is 'gaussian-full', which is the same as 'gaussian'"
        _warn(f"{text}; declare it as 'gaussian', whose sums a policy can round, or add another")
    for name, count in bins.items():
        at_least("bins", count, 2)
        if kinds.get(name, "categorical") != "categorical":
            text = f"{{kinds}} makes {name!r} a number, and {{bins}} cuts it into levels"
            raise SettingsError(f"{text}; give one of them", kinds=None, bins=None)


def _infer_column(
    column: Any, cells: Cells, levels: list[str] | None, word: str | None, label: str
) -> list[Variable]:
    """Variable of a column, two where a spike is split off.

    `levels` are those that its type declares, `word` is the declared kind; without, cells decide.
    """
    name, is_guess = column.name, word is None and levels is None
    if is_guess:
        word = columns.guess_kind(column, cells, label)
    if word is None or KINDS[columns.declared_words()[word][0]].has_levels:
        if is_guess:
            _check_countable(cells, label)
        inferred = [Variable(name, _infer_levels(cells, levels, label), word or "categorical")]
    else:
        values = reading.read_numbers(cells, label)
        spike = columns.find_spike(values) if is_guess else None
        rest = columns.number_variable(np.where(values == spike, np.nan, values), name, word, label)
        inferred = [replace(rest, spike=spike)]
        if spike is not None:
            indicator = f"{name} is {reading.spell(spike)}"
            twin = Variable(indicator, columns.SPIKE_LEVELS, spike=spike, source=name)
            inferred.insert(0, twin)
    return inferred


def _infer_levels(cells: Cells, declared: list[str] | None, label: str) -> tuple[str, ...]:
    levels = declared
    if levels is None:
        numbers = all(map(reading.NUMBER.fullmatch, cells.texts))
        levels = sorted(cells.texts)
        levels = sorted(levels, key=float) if numbers else levels
    blank = next((level for level in levels if not level.strip()), None)
    if blank is not None:
        raise DataError(f"{label} has blank cells; give {{na_values}}", na_values=blank)
    if not levels:
        _warn_missing_in_full(label)
    return tuple(levels)


def _with_missing(variable: Variable, cells: Cells, missing: Missing) -> Variable:
    """A variable with the level for missing cells, if it needs one."""
    if not KINDS[variable.kind].has_levels:
        return variable
    levels = variable.levels
    if missing == "level" and cells.missing.any():
        levels = (*(level for level in levels if level != MISSING_LEVEL), MISSING_LEVEL)
    return replace(variable, levels=levels or (UNOBSERVED_LEVEL,))


def _level_codes(
    cells: Cells, variable: Variable, missing: Missing, label: str, advice: str
) -> Ints:
    """Level code of each cell: (row,)."""
    codes = {level: code for code, level in enumerate(variable.levels)}
    other = codes.get(variable.other, -1)
    blank = codes.get(MISSING_LEVEL, other) if missing == "level" else len(variable.levels)
    unseen = [place for place, text in enumerate(cells.texts) if text not in codes]
    is_wrong = np.isin(cells.codes, unseen)
    if unseen and other >= 0:
        texts = cell(f", {quoted([cells.texts[place] for place in unseen])},")
        clause = f"{label} has {plural(int(is_wrong.sum()), 'cell')} not among its levels{texts}"
        _warn(f"{clause} and read as {variable.other!r}")
    elif unseen or (blank < 0 and cells.missing.any()):
        clauses = [_unseen_level(cells, place, codes) for place in unseen[:MOST_LISTED]]
        clauses += [""] * (len(unseen) - len(clauses))  # listing counts them
        if unseen:
            value = f"{first_of(int(is_wrong.sum()))} in data row {np.argmax(is_wrong) + 1}"
            clauses = [cell(listing(clauses), value)]
        if blank < 0 and cells.missing.any():
            words = f"a missing cell, which is a level of its own here ({MISSING_LEVEL!r}),"
            clauses.append(f"{words} in data row {np.argmax(cells.missing) + 1}")
        words = f"{label} has {listing(clauses)}, not among its levels {quoted(variable.levels)}"
        if blank >= 0:
            advice = f"leave missing cells empty (NA or None in a frame); otherwise {advice}"
        raise DataError(f"{words}; {advice}", schema=None)
    if cells.missing.all() and variable.levels not in {(UNOBSERVED_LEVEL,), (MISSING_LEVEL,)}:
        _warn_missing_in_full(label)
    lookup = np.array([codes.get(text, other) for text in cells.texts] + [blank], dtype=np.int64)
    return lookup[cells.codes]


def _unseen_level(cells: Cells, place: int, levels: Iterable[str]) -> str:
    """Description of a text that is not a level: the similar level, and its row."""
    text = cells.texts[place]
    twin = next((level for level in levels if columns.folded(level) == columns.folded(text)), None)
    hint = "" if twin is None else f" (did you mean {twin!r}?)"
    return f"{text!r}{hint} in data row {np.argmax(cells.codes == place) + 1}"


def _check_rows(frame: nw.DataFrame[Any], least: int, where: str) -> None:
    if len(frame) == 0:
        raise DataError(f"{where} has no rows; give a table with one row per unit")
    if len(frame) < least:
        text = f"{where} has a single row, and clusters need at least {least} to learn from"
        advice = "give more rows, or a {schema} if this is one silo of a study"
        raise DataError(f"{text}; {advice}", schema=None)


def _check_countable(cells: Cells, label: str) -> None:
    """Refuse a column of identifiers, or of numbers among words, rather than levels."""
    numbers, words = columns.numbers_and_words(cells.texts)
    advice = "leave it out with {exclude}, or declare its levels in a {schema}"
    if len(numbers) > columns.MOST_LEVELS:
        problem = f"{len(numbers)} distinct numbers, such as {quoted(numbers[:3])}"
        cure = "write its numbers with a decimal point"
        cure = f"give {{na_values}} for cells such as {words[0]!r}" if words else cure
        advice = f"looks continuous: {cure}, {advice}"
    elif columns.MOST_LEVELS < len(cells.texts) == np.count_nonzero(~cells.missing):
        problem = f"{len(cells.texts)} texts, all different, such as {quoted(cells.texts[:3])}"
        advice = f"looks like an identifier: name it with {{id}} of fit, or {advice}"
    else:
        return
    named: dict[str, Any] = {"exclude": ..., "id": ..., "na_values": ..., "schema": None}
    raise DataError(f"{label} has {problem}, and {advice}", **named)


def _warn(text: str) -> None:
    warn(DataWarning(text))


def _warn_missing_in_full(label: str) -> None:
    _warn(f"{label} is missing in every row and tells nothing; leave it out unless this is meant")
