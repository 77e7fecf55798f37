"""A job's row stays where it is; what is written at its end is small.

The statements stand in the .sql file beside this one, as those of 0001 do. They copy what there is, in one
transaction: a replica of the version before cannot work with what comes out.
"""

from pathlib import Path

from alembic import op
from alembic.util import CommandError

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    script = Path(__file__).with_suffix(".sql").read_text()
    op.get_bind().exec_driver_sql(script, execution_options={"no_parameters": True})


def downgrade() -> None:
    raise CommandError("there is no way down from 0002: restore the backup that was made before it")
