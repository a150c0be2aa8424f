"""A worker shows the loss of a database, of rights and of a slot, and recovers where it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.connect.postgresql.bed import LOGICAL, connector_file, database
from tests.connect.worker_bed import worker_of
from tests.postgres import postgres_server

SHOWN_SECONDS = 5.0
END = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active"
DROP = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
ACTIVE = "SELECT 1 FROM pg_replication_slots WHERE active"


@pytest.mark.long
def test_losses_of_the_database_rights_and_slot(log: Broker, tmp_path: Path) -> None:
    with (
        postgres_server(settings=LOGICAL) as server,
        server.database() as name,
        worker_of(tmp_path / "connectors", log.bootstrap) as worker,
    ):
        with database(server.url(name)) as shop:
            shop("CREATE TABLE orders (id int PRIMARY KEY)")
            shop("CREATE ROLE capture LOGIN REPLICATION")
            shop(f"GRANT ALL ON DATABASE {name} TO capture")
            shop("ALTER TABLE orders OWNER TO capture")
        retry = "[errors]\nretry_delay_max_seconds = 0.5\n"
        url = server.url(name).replace("penstock@", "capture@")
        connector_file(worker.directory, url, tables="public.orders", more=retry)
        worker.wait("shop", "RUNNING")

        server.stop()
        assert worker.wait("shop", "RETRYING", "connect") < SHOWN_SECONDS
        server.start()
        worker.wait("shop", "RUNNING")

        with database(server.url(name)) as shop:
            while not shop(ACTIVE):
                pass
            shop("ALTER ROLE capture NOREPLICATION")
            shop(END)
            assert worker.wait("shop", "FAILED", " to start ") < SHOWN_SECONDS
            assert worker.metric("state", "shop", state="FAILED") == 1
            shop("ALTER ROLE capture REPLICATION")
            worker.wait("shop", "RUNNING")

            worker.call("PUT", "/connectors/shop/pause")
            while shop(ACTIVE):
                pass
            shop(DROP)
            worker.call("PUT", "/connectors/shop/resume")
            assert worker.wait("shop", "FAILED", "is lost") < SHOWN_SECONDS
