"""Health records made up: OMOP tables, files of them, and what was dropped, by its key."""

from __future__ import annotations

import duckdb
import pandas as pd

from silomix import ehr
from silomix.ehr.counting import REASONS

SMALL = ehr.Engine(memory="200MB", threads=1)


def written(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def quote(name):
    return '"' + name.replace('"', '""') + '"'


def write_database(path, tables, schema="main"):
    """Write frames as the tables of a DuckDB file."""
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}")
        for name, frame in tables.items():
            connection.register("frame", frame)
            connection.execute(f"CREATE TABLE {quote(schema)}.{quote(name)} AS FROM frame")
            connection.unregister("frame")
    return path


def counted(found):
    """What was dropped, by the key of its reason: (events, people)."""
    keys = {words: key for key, (words, _) in REASONS.items()}
    assert found.dropped["what_to_do"].tolist() == [
        REASONS[keys[reason]][1] for reason in found.dropped["reason"]
    ]
    return {keys[reason]: (e, p) for reason, e, p, _ in found.dropped.itertuples(index=False)}


def omop(people, periods, events, deaths=(), ancestors=()):
    """Frames of the OMOP tables; deaths and ancestors are pairs."""

    def frame(rows, *columns):
        return pd.DataFrame(rows, columns=columns)

    whole = {"person_id": "Int64", "condition_concept_id": "Int64"}
    period = "observation_period_start_date", "observation_period_end_date"
    person = frame(people, "person_id", "gender_concept_id", "year_of_birth", "care_site_id")
    return {
        "person": person.astype("Int64"),
        "observation_period": frame(periods, "person_id", *period),
        "condition_occurrence": frame(events, *whole, "condition_start_date").astype(whole),
        "concept_ancestor": frame(ancestors, "ancestor_concept_id", "descendant_concept_id"),
        "death": frame(deaths, "person_id", "death_date"),
    }
