"""An example of each command, for the end of its help page."""

EXAMPLES = {
    "demo": "silomix demo --out demo-output",
    "fit": "silomix fit table.csv --silo hospital --seed 1 --out results",
    "assign": "silomix assign results new.csv --silo hospital --out labels.csv",
    "report": "silomix report results --out report.html",
    "simulate": "silomix simulate non-nested --seed 1 --out table.csv",
    "study": "silomix study codebook.csv --silos north,south --preset files --out study.toml",
    "coordinate": "silomix coordinate study.toml --exchange exchange --out results",
    "answer": "silomix answer exchange --silo north --data north.csv --study study.toml",
    "sample": "silomix sample north.csv --study study.toml --silo north --out north-results",
    "release": "silomix release north.csv --study study.toml --silo north --dry-run",
    "inspect": "silomix inspect release-of-north",
    "ledger": "silomix ledger --data north.csv --allow study.toml",
    "ehr long": "silomix ehr long events.csv --codes codes.csv --out people.parquet",
    "ehr omop": "silomix ehr omop cdm.duckdb --codes codes.csv --out people.parquet",
    "flare provision": "silomix flare provision study.toml --host server.example --out kits",
    "flare server": "silomix flare server kits/server",
    "flare site": "silomix flare site kits/north --data north.csv --study study.toml",
    "flare run": "silomix flare run study.toml --admin kits/admin --out results",
    "flare stop": "silomix flare stop --admin kits/admin",
}


def epilog(command: str) -> str:
    """Return the lines below a command's options."""
    return f"Example:\n  {EXAMPLES[command]}"
