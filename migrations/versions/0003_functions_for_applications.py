"""Functions for applications on the same database: enqueue, hold_lease and complete.

The statements stand in the .sql file beside this one, as those of 0001 do. No table changes, so there is a
way down: jobs that came or ended by the functions stay.
"""

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_DOWN = """
DROP FUNCTION
    fencepost.enqueue, fencepost.complete, fencepost.hold_lease, fencepost.refuse_lease,
    fencepost.checked_json, fencepost.by_tokens, fencepost.checked_backoff, fencepost.checked_metadata;
GRANT EXECUTE ON FUNCTION fencepost.first_job_id_at, fencepost.new_job_id TO PUBLIC;
"""


def upgrade() -> None:
    script = Path(__file__).with_suffix(".sql").read_text()
    op.get_bind().exec_driver_sql(script, execution_options={"no_parameters": True})


def downgrade() -> None:
    op.get_bind().exec_driver_sql(_DOWN)
