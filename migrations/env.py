"""Runs the versions on one connection that app.store.schema opened and locked."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    version_table="schema_version",
    version_table_schema="fencepost",
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
