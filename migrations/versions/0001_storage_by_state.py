"""Storage by state.

The statements stand in the .sql file beside this one; they are sent as they are, without
parameters, so that a colon or a percent sign in them means itself.
"""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    script = Path(__file__).with_suffix(".sql").read_text()
    op.get_bind().exec_driver_sql(script, execution_options={"no_parameters": True})


def downgrade() -> None:
    op.get_bind().exec_driver_sql("DROP SCHEMA fencepost CASCADE")
