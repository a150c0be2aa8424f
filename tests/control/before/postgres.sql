-- What `contents.py` fills, by pg_dump, of the schema `present`.
CREATE FUNCTION present.penstock_fence(expected bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    found bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1346719315, 2);
    IF expected IS NOT NULL THEN
        SELECT membership INTO found FROM image_version;
        IF found <> expected THEN
            RAISE EXCEPTION 'the membership is %, not %', found, expected
                USING ERRCODE = 'PK001', DETAIL = expected || ' ' || found;
        END IF;
    END IF;
END
$$;
CREATE FUNCTION present.penstock_now_ms() RETURNS bigint
    LANGUAGE sql STABLE
    AS $$SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint$$;
CREATE TABLE present.broker_configs (
    broker text NOT NULL,
    configs text NOT NULL
);
CREATE TABLE present.brokers (
    broker_id integer NOT NULL,
    host text,
    port integer,
    rack text,
    incarnation uuid,
    epoch bigint NOT NULL,
    registered boolean NOT NULL,
    renewed_ms bigint NOT NULL,
    endpoints text DEFAULT '[]'::text NOT NULL,
    roles text DEFAULT '["ingestion", "persistence"]'::text NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE present.coordination_records (
    kind text NOT NULL COLLATE pg_catalog."C",
    key bytea NOT NULL,
    member bytea NOT NULL,
    version bigint NOT NULL,
    value bytea NOT NULL
)
WITH (fillfactor='80');
CREATE TABLE present.counters (
    name text NOT NULL,
    value bigint NOT NULL
);
CREATE TABLE present.diskless_aborted (
    partition_id bigint NOT NULL,
    last_offset bigint NOT NULL,
    producer_id bigint NOT NULL,
    first_offset bigint NOT NULL,
    last_stable_offset bigint NOT NULL,
    CONSTRAINT diskless_aborted_check CHECK ((first_offset < last_offset))
);
CREATE TABLE present.diskless_answers (
    object_id bigint NOT NULL,
    committed_ms bigint NOT NULL,
    answer bytea NOT NULL
);
CREATE TABLE present.diskless_extents (
    partition_id bigint NOT NULL,
    base_offset bigint NOT NULL,
    next_offset bigint NOT NULL,
    object_id bigint NOT NULL,
    byte_offset bigint NOT NULL,
    size_bytes bigint NOT NULL,
    max_timestamp bigint NOT NULL,
    append_time_ms bigint NOT NULL,
    layout bytea NOT NULL,
    CONSTRAINT diskless_extents_check CHECK ((next_offset > base_offset))
);
CREATE TABLE present.diskless_objects (
    object_id bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    state text NOT NULL,
    kind text NOT NULL,
    size_bytes bigint NOT NULL,
    extents bigint NOT NULL,
    changed_ms bigint NOT NULL,
    CONSTRAINT diskless_objects_extents_check CHECK ((extents >= 0)),
    CONSTRAINT diskless_objects_kind_check CHECK ((kind = ANY (ARRAY['wal'::text, 'segment'::text]))),
    CONSTRAINT diskless_objects_size_bytes_check CHECK ((size_bytes >= 0)),
    CONSTRAINT diskless_objects_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'committed'::text, 'deleting'::text])))
)
WITH (fillfactor='80');
CREATE TABLE present.diskless_partitions (
    partition_id bigint NOT NULL,
    topic_id uuid NOT NULL,
    number integer NOT NULL,
    log_start_offset bigint NOT NULL,
    high_watermark bigint NOT NULL,
    size_bytes bigint NOT NULL,
    wal_extents bigint NOT NULL,
    wal_bytes bigint NOT NULL,
    open_offset bigint DEFAULT '-1'::integer NOT NULL,
    aborted_offset bigint DEFAULT '-1'::integer NOT NULL,
    clean_offset bigint DEFAULT 0 NOT NULL,
    CONSTRAINT diskless_partitions_check CHECK (((log_start_offset >= 0) AND (log_start_offset <= high_watermark))),
    CONSTRAINT diskless_partitions_number_check CHECK ((number >= 0)),
    CONSTRAINT diskless_partitions_size_bytes_check CHECK ((size_bytes >= 0)),
    CONSTRAINT diskless_partitions_wal_bytes_check CHECK ((wal_bytes >= 0)),
    CONSTRAINT diskless_partitions_wal_extents_check CHECK ((wal_extents >= 0))
)
WITH (fillfactor='25', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000');
ALTER TABLE present.diskless_partitions ALTER COLUMN partition_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME present.diskless_partitions_partition_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE present.diskless_producers (
    partition_id bigint NOT NULL,
    producer_id bigint NOT NULL,
    epoch integer NOT NULL,
    seen_ms bigint NOT NULL,
    batches bytea NOT NULL,
    coordinator_epoch integer DEFAULT '-1'::integer NOT NULL,
    txn_first_offset bigint DEFAULT '-1'::integer NOT NULL,
    guard_offset bigint DEFAULT '-1'::integer NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE present.diskless_store (
    only_row boolean DEFAULT true NOT NULL,
    store_id uuid NOT NULL,
    place text NOT NULL,
    CONSTRAINT diskless_store_only_row_check CHECK (only_row)
);
CREATE TABLE present.diskless_switch_shares (
    topic_id uuid NOT NULL,
    broker_id integer NOT NULL,
    incarnation uuid NOT NULL,
    state text NOT NULL,
    reason text NOT NULL,
    partitions bytea NOT NULL,
    CONSTRAINT diskless_switch_shares_state_check CHECK ((state = ANY (ARRAY['copying'::text, 'ready'::text, 'fenced'::text, 'failed'::text])))
);
CREATE TABLE present.diskless_switches (
    topic_id uuid NOT NULL,
    switch_id uuid NOT NULL,
    broker_id integer NOT NULL,
    incarnation uuid NOT NULL
);
CREATE TABLE present.entity_configs (
    kind text NOT NULL,
    name text NOT NULL,
    configs text NOT NULL
);
CREATE TABLE present.group_offsets (
    group_id text NOT NULL COLLATE pg_catalog."C",
    topic text NOT NULL COLLATE pg_catalog."C",
    number integer NOT NULL,
    topic_id uuid NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch integer NOT NULL,
    metadata bytea NOT NULL,
    commit_timestamp_ms bigint NOT NULL,
    expire_timestamp_ms bigint
)
WITH (fillfactor='80');
CREATE TABLE present.image_version (
    only_row boolean DEFAULT true NOT NULL,
    cluster_id text NOT NULL,
    version bigint NOT NULL,
    membership bigint NOT NULL,
    stamp uuid NOT NULL,
    entity_stamp uuid,
    CONSTRAINT image_version_only_row_check CHECK (only_row)
);
CREATE TABLE present.partition_epochs (
    topic_id uuid NOT NULL,
    number integer NOT NULL,
    epoch integer NOT NULL,
    start_offset bigint NOT NULL,
    end_offset bigint,
    replicas text NOT NULL,
    ack_quorum integer NOT NULL,
    leader integer NOT NULL,
    incarnation uuid,
    CONSTRAINT partition_epochs_check CHECK ((end_offset >= start_offset)),
    CONSTRAINT partition_epochs_epoch_check CHECK ((epoch >= 0)),
    CONSTRAINT partition_epochs_number_check CHECK ((number >= 0)),
    CONSTRAINT partition_epochs_start_offset_check CHECK ((start_offset >= 0)),
    CONSTRAINT quorum_of_replicas CHECK (((ack_quorum >= 1) AND (ack_quorum <= json_array_length((replicas)::json)))),
    CONSTRAINT quorums_share_a_replica CHECK (((2 * ack_quorum) > json_array_length((replicas)::json)))
);
CREATE TABLE present.partition_losses (
    topic_id uuid NOT NULL,
    number integer NOT NULL,
    epoch integer NOT NULL,
    sealed integer NOT NULL,
    from_offset bigint NOT NULL,
    broker integer NOT NULL,
    missing text NOT NULL,
    at_ms bigint NOT NULL
);
CREATE TABLE present.partitions (
    topic_id uuid NOT NULL,
    number integer NOT NULL,
    leader integer NOT NULL,
    leader_epoch integer NOT NULL,
    replicas text NOT NULL,
    isr text NOT NULL,
    target text DEFAULT '[]'::text NOT NULL,
    move bigint DEFAULT 0 NOT NULL,
    CONSTRAINT partitions_leader_epoch_check CHECK ((leader_epoch >= 0)),
    CONSTRAINT partitions_move_check CHECK ((move >= 0)),
    CONSTRAINT partitions_number_check CHECK ((number >= 0))
);
CREATE TABLE present.pending_offsets (
    group_id text NOT NULL COLLATE pg_catalog."C",
    topic text NOT NULL COLLATE pg_catalog."C",
    number integer NOT NULL,
    transactional_id bytea NOT NULL,
    topic_id uuid NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch integer NOT NULL,
    metadata bytea NOT NULL,
    commit_timestamp_ms bigint NOT NULL,
    ordinal bigint NOT NULL,
    overtaken boolean NOT NULL
)
WITH (fillfactor='80');
CREATE TABLE present.penstock_schema (
    number integer NOT NULL,
    applied timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE present.replicated_partitions (
    topic_id uuid NOT NULL,
    number integer NOT NULL,
    reserved integer NOT NULL,
    claimant integer NOT NULL,
    incarnation uuid,
    CONSTRAINT replicated_partitions_number_check CHECK ((number >= 0)),
    CONSTRAINT replicated_partitions_reserved_check CHECK ((reserved >= 0))
)
WITH (fillfactor='80');
CREATE TABLE present.sink_commits (
    query_id text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    owner text,
    batch_id bigint NOT NULL,
    state text NOT NULL,
    updated_ms bigint NOT NULL,
    lanes bytea NOT NULL,
    manifest bytea NOT NULL,
    CONSTRAINT sink_commits_batch_id_check CHECK ((batch_id >= 0)),
    CONSTRAINT sink_commits_state_check CHECK ((state = ANY (ARRAY['intent'::text, 'done'::text])))
);
CREATE SEQUENCE present.sink_versions
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE present.tiered_partitions (
    topic_id uuid NOT NULL,
    number integer NOT NULL,
    log_start_offset bigint NOT NULL,
    tiered_offset bigint NOT NULL,
    size_bytes bigint NOT NULL,
    segments bigint NOT NULL,
    CONSTRAINT tiered_partitions_log_start_offset_check CHECK ((log_start_offset >= 0)),
    CONSTRAINT tiered_partitions_number_check CHECK ((number >= 0)),
    CONSTRAINT tiered_partitions_segments_check CHECK ((segments >= 0)),
    CONSTRAINT tiered_partitions_size_bytes_check CHECK ((size_bytes >= 0)),
    CONSTRAINT tiered_partitions_tiered_offset_check CHECK ((tiered_offset >= 0))
)
WITH (fillfactor='50');
CREATE TABLE present.tiered_segments (
    topic_id uuid NOT NULL,
    number integer NOT NULL,
    base_offset bigint NOT NULL,
    next_offset bigint NOT NULL,
    leader_epoch integer NOT NULL,
    max_timestamp bigint NOT NULL,
    object_id bigint NOT NULL,
    stem text NOT NULL COLLATE pg_catalog."C",
    size_bytes bigint NOT NULL,
    index_bytes bigint NOT NULL,
    time_index_bytes bigint NOT NULL,
    aborted_bytes bigint NOT NULL,
    checksum bigint NOT NULL,
    CONSTRAINT tiered_segments_check CHECK ((next_offset > base_offset)),
    CONSTRAINT tiered_segments_size_bytes_check CHECK ((size_bytes > 0))
);
CREATE TABLE present.topics (
    topic_id uuid NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    configs text NOT NULL,
    internal boolean NOT NULL,
    stamp uuid NOT NULL
);
INSERT INTO present.broker_configs VALUES ('', '{"x": ""}');
INSERT INTO present.broker_configs VALUES ('1', '{"x": "1"}');
INSERT INTO present.brokers VALUES (1, 'h', 9, NULL, '00000000-0000-0000-0000-00000000000b', 1, true, 1795918571775, '[]', '["ingestion", "persistence"]');
INSERT INTO present.brokers VALUES (2, 'h', 9, NULL, '00000000-0000-0000-0000-00000000000c', 1, true, 1795918571858, '[]', '["ingestion", "persistence"]');
INSERT INTO present.brokers VALUES (3, 'h', 9, NULL, '00000000-0000-0000-0000-00000000000d', 1, false, 1795918571860, '[]', '["ingestion", "persistence"]');
INSERT INTO present.brokers VALUES (4, 'h', 9, 'r', '00000000-0000-0000-0000-00000000000e', 1, true, 1795918572088, '[["inside", "i", 8]]', '["persistence"]');
INSERT INTO present.coordination_records VALUES ('group', '\x67', '\x', 7, '\x7b2267656e65726174696f6e223a332c2270726f746f636f6c5f74797065223a22636f6e73756d6572222c2270726f746f636f6c223a2272616e6765222c22666f726d6174223a312c2265706f6368223a322c226c6561646572223a226d2d31222c226d656d62657273223a5b7b226964223a226d2d31222c22696e7374616e6365223a6e756c6c2c22636c69656e74223a2263222c22686f7374223a222f68222c2273657373696f6e5f74696d656f75745f6d73223a34353030302c22726562616c616e63655f74696d656f75745f6d73223a36303030302c2270726f746f636f6c73223a5b5b2272616e6765222c224141453d225d5d2c2261737369676e6d656e74223a224141493d227d5d7d');
INSERT INTO present.coordination_records VALUES ('group', '\x67', '\x6d2d31', 7, '\x61206d656d62657200');
INSERT INTO present.coordination_records VALUES ('transaction', '\x7478', '\x', 7, '\x626567756e');
INSERT INTO present.coordination_records VALUES ('transaction', '\x7478', '\x67726f75702f67', 7, '\x00000000000000070000');
INSERT INTO present.counters VALUES ('next_producer_id', 10);
INSERT INTO present.counters VALUES ('highest_object_id', 8);
INSERT INTO present.diskless_aborted VALUES (1, 15, 9, 10, 16);
INSERT INTO present.diskless_answers VALUES (1, 1795918572012, '\x9301929600ff00c2c0c09600ff00c2c0c09294c410000000000000000000000000000000070095000564ffff919a01d92077616c2f30312f303030303030303030303030303030312d3030303030303036a377616c0a640005cd01f4ffc408640000000500000094c410000000000000000000000000000000070195000578ffff919a01d92077616c2f30312f303030303030303030303030303030312d3030303030303036a377616c6e780005cd0384ffc41032000000020000004600000003000000');
INSERT INTO present.diskless_answers VALUES (2, 1795918572054, '\x9301919605ff00c2c0c09194c410000000000000000000000000000000070095000accc8ffff919a02d92077616c2f30322f303030303030303030303030303030322d3030303030303036a377616c0a64050acd01f4ffc4086400000005000000');
INSERT INTO present.diskless_answers VALUES (4, 1795918572261, '\x930193960aff02c2c0c0960fff02c2c0c09610ff02c2c0c09194c4100000000000000000000000000000000700950215cd01de100f919a04d92077616c2f30342f303030303030303030303030303030342d3030303030303036a377616c0acd01160a15cd01f4ffc41864000000050000004e000000010000006400000005000000');
INSERT INTO present.diskless_extents VALUES (1, 0, 5, 1, 10, 100, 500, -1, '\x6400000005000000');
INSERT INTO present.diskless_extents VALUES (2, 0, 5, 1, 110, 120, 900, -1, '\x32000000020000004600000003000000');
INSERT INTO present.diskless_extents VALUES (1, 5, 10, 2, 10, 100, 500, -1, '\x6400000005000000');
INSERT INTO present.diskless_extents VALUES (1, 10, 21, 4, 10, 278, 500, -1, '\x64000000050000004e000000010000006400000005000000');
INSERT INTO present.diskless_objects VALUES (1, 'wal/01/0000000000000001-00000006', 'committed', 'wal', 260, 2, 1795918572012);
INSERT INTO present.diskless_objects VALUES (2, 'wal/02/0000000000000002-00000006', 'committed', 'wal', 140, 1, 1795918572053);
INSERT INTO present.diskless_objects VALUES (3, 'archive/00000000-0000-0000-0000-000000000015/1/00000000000000000005-0-0000000000000003-00000006.log', 'pending', 'wal', 0, 0, 1795918572065);
INSERT INTO present.diskless_objects VALUES (4, 'wal/04/0000000000000004-00000006', 'committed', 'wal', 318, 1, 1795918572261);
INSERT INTO present.diskless_objects VALUES (5, 'archive/00000000-0000-0000-0000-00000000003c/0/00000000000000000000-0-0000000000000005-00000006.log', 'committed', 'segment', 100, 1, 1795918572336);
INSERT INTO present.diskless_objects VALUES (6, 'archive/00000000-0000-0000-0000-00000000003c/0/00000000000000000000-0-0000000000000005-00000006.index', 'committed', 'segment', 8, 1, 1795918572336);
INSERT INTO present.diskless_objects VALUES (7, 'archive/00000000-0000-0000-0000-00000000003c/0/00000000000000000000-0-0000000000000005-00000006.timeindex', 'committed', 'segment', 12, 1, 1795918572337);
INSERT INTO present.diskless_objects VALUES (8, 'archive/00000000-0000-0000-0000-00000000003c/0/00000000000000000000-0-0000000000000005-00000006.txnindex', 'committed', 'segment', 34, 1, 1795918572337);
INSERT INTO present.diskless_partitions OVERRIDING SYSTEM VALUE VALUES (1, '00000000-0000-0000-0000-000000000007', 0, 2, 21, 478, 3, 478, 16, 15, 0);
INSERT INTO present.diskless_partitions OVERRIDING SYSTEM VALUE VALUES (2, '00000000-0000-0000-0000-000000000007', 1, 0, 5, 120, 1, 120, -1, -1, 5);
INSERT INTO present.diskless_producers VALUES (1, 5, 0, 1795918572048, '\x0000000004000000040000000000000004000000f4010000000000000500000009000000090000000000000004000000f401000000000000', -1, -1, -1);
INSERT INTO present.diskless_producers VALUES (1, 9, 1, 1795918572255, '\x', 1, -1, -1);
INSERT INTO present.diskless_producers VALUES (1, 8, 0, 1795918572255, '\x0000000004000000140000000000000004000000f401000000000000', -1, 16, 4611686018427387904);
INSERT INTO present.diskless_store VALUES (true, '00000000-0000-0000-0000-000000000003', 's3://somewhere');
INSERT INTO present.diskless_switch_shares VALUES ('00000000-0000-0000-0000-000000000015', 2, '00000000-0000-0000-0000-00000000000c', 'fenced', '', '\x92019188a9706172746974696f6e01ac6c65616465725f65706f636800b06c6f675f73746172745f6f666673657405ae686967685f77617465726d61726b0aa76f626a6563747391920364a7657874656e7473919a03d963617263686976652f30303030303030302d303030302d303030302d303030302d3030303030303030303031352f312f30303030303030303030303030303030303030352d302d303030303030303030303030303030332d30303030303030362e6c6f67a77365676d656e740064050acd02bcffc4086400000005000000a970726f647563657273811f9602919500040904cd02bc02ffffffa761626f7274656490');
INSERT INTO present.diskless_switches VALUES ('00000000-0000-0000-0000-000000000015', '00000000-0000-0000-0000-000000000064', 1, '00000000-0000-0000-0000-00000000000b');
INSERT INTO present.entity_configs VALUES ('quota', 'user=ü', '{"consumer_byte_rate": "1"}');
INSERT INTO present.group_offsets VALUES ('g', 'local', 0, '00000000-0000-0000-0000-000000000009', 4, 3, '\x6772c3b6c39f6572', 7, 900);
INSERT INTO present.group_offsets VALUES ('g', 'local', 1, '00000000-0000-0000-0000-000000000009', 5, 3, '\x6772c3b6c39f6572', 7, NULL);
INSERT INTO present.group_offsets VALUES ('h', 'local', 0, '00000000-0000-0000-0000-000000000009', 4, 3, '\x', 7, 900);
INSERT INTO present.group_offsets VALUES ('h', 'local', 1, '00000000-0000-0000-0000-000000000009', 5, 3, '\x', 7, NULL);
INSERT INTO present.image_version VALUES (true, 'AAAAAAAAAAAAAAAAAAAATQ', 20, 5, '00000000-0000-0000-0000-0000000003ff', '00000000-0000-0000-0000-0000000003fc');
INSERT INTO present.partition_epochs VALUES ('00000000-0000-0000-0000-000000000028', 1, 0, 0, NULL, '[2, 1]', 2, 2, '00000000-0000-0000-0000-00000000000c');
INSERT INTO present.partition_epochs VALUES ('00000000-0000-0000-0000-000000000028', 0, 0, 0, 5, '[1, 2]', 2, 1, '00000000-0000-0000-0000-00000000000b');
INSERT INTO present.partition_epochs VALUES ('00000000-0000-0000-0000-000000000028', 0, 1, 5, 5, '[1, 2]', 2, 2, '00000000-0000-0000-0000-00000000000c');
INSERT INTO present.partition_epochs VALUES ('00000000-0000-0000-0000-000000000028', 0, 2, 5, NULL, '[2]', 1, 2, '00000000-0000-0000-0000-00000000000c');
INSERT INTO present.partition_losses VALUES ('00000000-0000-0000-0000-000000000028', 0, 2, 1, 5, 2, '[1]', 1795918572147);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000007', 0, 1, 0, '[1]', '[1]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000007', 1, 1, 0, '[1]', '[1]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000007', 2, 1, 0, '[1]', '[1]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000008', 0, 1, 0, '[1]', '[1]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000008', 1, 1, 0, '[1]', '[1]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000008', 2, 1, 0, '[1]', '[1]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000009', 0, 1, 0, '[1]', '[1]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000009', 1, 1, 0, '[1]', '[1]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000009', 2, 1, 0, '[1]', '[1]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000015', 0, 1, 0, '[1]', '[1]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000015', 1, 2, 0, '[2]', '[2]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000015', 2, 1, 0, '[1]', '[1]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000015', 3, 3, 0, '[3]', '[3]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000028', 1, 2, 0, '[2, 1]', '[2, 1]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000028', 2, 2, 0, '[2]', '[2]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000029', 0, 1, 0, '[1]', '[1]', '[]', 0);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-000000000028', 0, 2, 2, '[2]', '[2]', '[1, 2]', 19);
INSERT INTO present.partitions VALUES ('00000000-0000-0000-0000-00000000003c', 0, 1, 0, '[1]', '[1]', '[]', 0);
INSERT INTO present.pending_offsets VALUES ('g', 'local', 1, '\x7478', '00000000-0000-0000-0000-000000000009', 8, -1, '\x', 0, 1, false);
INSERT INTO present.penstock_schema VALUES (1, '2026-11-29 02:16:11.535496+00');
INSERT INTO present.penstock_schema VALUES (2, '2026-11-29 02:16:11.589469+00');
INSERT INTO present.penstock_schema VALUES (3, '2026-11-29 02:16:11.599906+00');
INSERT INTO present.penstock_schema VALUES (4, '2026-11-29 02:16:11.607097+00');
INSERT INTO present.penstock_schema VALUES (5, '2026-11-29 02:16:11.620057+00');
INSERT INTO present.penstock_schema VALUES (6, '2026-11-29 02:16:11.637472+00');
INSERT INTO present.penstock_schema VALUES (7, '2026-11-29 02:16:11.640509+00');
INSERT INTO present.penstock_schema VALUES (8, '2026-11-29 02:16:11.661547+00');
INSERT INTO present.penstock_schema VALUES (9, '2026-11-29 02:16:11.666998+00');
INSERT INTO present.penstock_schema VALUES (10, '2026-11-29 02:16:11.677438+00');
INSERT INTO present.penstock_schema VALUES (11, '2026-11-29 02:16:11.687018+00');
INSERT INTO present.penstock_schema VALUES (12, '2026-11-29 02:16:11.690212+00');
INSERT INTO present.penstock_schema VALUES (13, '2026-11-29 02:16:11.698137+00');
INSERT INTO present.penstock_schema VALUES (14, '2026-11-29 02:16:11.71132+00');
INSERT INTO present.penstock_schema VALUES (15, '2026-11-29 02:16:11.721338+00');
INSERT INTO present.penstock_schema VALUES (16, '2026-11-29 02:16:11.722416+00');
INSERT INTO present.replicated_partitions VALUES ('00000000-0000-0000-0000-000000000028', 1, 0, 2, '00000000-0000-0000-0000-00000000000c');
INSERT INTO present.replicated_partitions VALUES ('00000000-0000-0000-0000-000000000028', 0, 2, 2, '00000000-0000-0000-0000-00000000000c');
INSERT INTO present.sink_commits VALUES ('q', 1, 'o', 4, 'intent', 6, '\x78018b8e56cac94f4ecc51d25132c00f2c95740c752c740c748c75740d81283616009e680cc9', '\x6d00');
INSERT INTO present.sink_commits VALUES ('r', 2, 'o', 4, 'done', 6, '\x78018b8e56cac94f4ecc51d25132c00f2c95740c752c740c748c75740d81283616009e680cc9', '\x6d00');
INSERT INTO present.tiered_partitions VALUES ('00000000-0000-0000-0000-00000000003c', 0, 0, 10, 100, 1);
INSERT INTO present.tiered_segments VALUES ('00000000-0000-0000-0000-00000000003c', 0, 0, 10, 0, 10, 5, 'archive/00000000-0000-0000-0000-00000000003c/0/00000000000000000000-0-0000000000000005-00000006', 100, 8, 12, 34, 4294967295);
INSERT INTO present.topics VALUES ('00000000-0000-0000-0000-000000000007', 'flights', '{"diskless.enable": "true"}', false, '00000000-0000-0000-0000-0000000003ed');
INSERT INTO present.topics VALUES ('00000000-0000-0000-0000-000000000008', 'other', '{"diskless.enable": "true"}', false, '00000000-0000-0000-0000-0000000003ee');
INSERT INTO present.topics VALUES ('00000000-0000-0000-0000-000000000009', 'local', '{}', false, '00000000-0000-0000-0000-0000000003ef');
INSERT INTO present.topics VALUES ('00000000-0000-0000-0000-000000000015', 'spread', '{}', false, '00000000-0000-0000-0000-0000000003f2');
INSERT INTO present.topics VALUES ('00000000-0000-0000-0000-000000000029', '__own', '{}', true, '00000000-0000-0000-0000-0000000003f6');
INSERT INTO present.topics VALUES ('00000000-0000-0000-0000-000000000028', 'wide', '{"a": "\u00fc"}', false, '00000000-0000-0000-0000-0000000003fe');
INSERT INTO present.topics VALUES ('00000000-0000-0000-0000-00000000003c', 'tiered', '{"remote.storage.enable": "true"}', false, '00000000-0000-0000-0000-0000000003ff');
SELECT pg_catalog.setval('present.diskless_partitions_partition_id_seq', 2, true);
SELECT pg_catalog.setval('present.sink_versions', 2, true);
ALTER TABLE ONLY present.broker_configs ADD CONSTRAINT broker_configs_pkey PRIMARY KEY (broker);
ALTER TABLE ONLY present.brokers ADD CONSTRAINT brokers_pkey PRIMARY KEY (broker_id);
ALTER TABLE ONLY present.coordination_records ADD CONSTRAINT coordination_records_pkey PRIMARY KEY (kind, key, member);
ALTER TABLE ONLY present.counters ADD CONSTRAINT counters_pkey PRIMARY KEY (name);
ALTER TABLE ONLY present.diskless_aborted ADD CONSTRAINT diskless_aborted_pkey PRIMARY KEY (partition_id, last_offset);
ALTER TABLE ONLY present.diskless_answers ADD CONSTRAINT diskless_answers_pkey PRIMARY KEY (object_id);
ALTER TABLE ONLY present.diskless_extents ADD CONSTRAINT diskless_extents_pkey PRIMARY KEY (partition_id, base_offset);
ALTER TABLE ONLY present.diskless_objects ADD CONSTRAINT diskless_objects_key_key UNIQUE (key);
ALTER TABLE ONLY present.diskless_objects ADD CONSTRAINT diskless_objects_pkey PRIMARY KEY (object_id);
ALTER TABLE ONLY present.diskless_partitions ADD CONSTRAINT diskless_partitions_pkey PRIMARY KEY (partition_id);
ALTER TABLE ONLY present.diskless_partitions ADD CONSTRAINT diskless_partitions_topic_id_number_key UNIQUE (topic_id, number);
ALTER TABLE ONLY present.diskless_producers ADD CONSTRAINT diskless_producers_pkey PRIMARY KEY (partition_id, producer_id);
ALTER TABLE ONLY present.diskless_store ADD CONSTRAINT diskless_store_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY present.diskless_switch_shares ADD CONSTRAINT diskless_switch_shares_pkey PRIMARY KEY (topic_id, broker_id);
ALTER TABLE ONLY present.diskless_switches ADD CONSTRAINT diskless_switches_pkey PRIMARY KEY (topic_id);
ALTER TABLE ONLY present.entity_configs ADD CONSTRAINT entity_configs_pkey PRIMARY KEY (kind, name);
ALTER TABLE ONLY present.group_offsets ADD CONSTRAINT group_offsets_pkey PRIMARY KEY (group_id, topic, number);
ALTER TABLE ONLY present.image_version ADD CONSTRAINT image_version_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY present.partition_epochs ADD CONSTRAINT partition_epochs_pkey PRIMARY KEY (topic_id, number, epoch);
ALTER TABLE ONLY present.partition_losses ADD CONSTRAINT partition_losses_pkey PRIMARY KEY (topic_id, number, epoch);
ALTER TABLE ONLY present.partitions ADD CONSTRAINT partitions_pkey PRIMARY KEY (topic_id, number);
ALTER TABLE ONLY present.pending_offsets ADD CONSTRAINT pending_offsets_pkey PRIMARY KEY (group_id, topic, number, transactional_id);
ALTER TABLE ONLY present.penstock_schema ADD CONSTRAINT penstock_schema_pkey PRIMARY KEY (number);
ALTER TABLE ONLY present.replicated_partitions ADD CONSTRAINT replicated_partitions_pkey PRIMARY KEY (topic_id, number);
ALTER TABLE ONLY present.sink_commits ADD CONSTRAINT sink_commits_pkey PRIMARY KEY (query_id);
ALTER TABLE ONLY present.tiered_partitions ADD CONSTRAINT tiered_partitions_pkey PRIMARY KEY (topic_id, number);
ALTER TABLE ONLY present.tiered_segments ADD CONSTRAINT tiered_segments_object_id_key UNIQUE (object_id);
ALTER TABLE ONLY present.tiered_segments ADD CONSTRAINT tiered_segments_pkey PRIMARY KEY (topic_id, number, base_offset);
ALTER TABLE ONLY present.topics ADD CONSTRAINT topics_name_key UNIQUE (name);
ALTER TABLE ONLY present.topics ADD CONSTRAINT topics_pkey PRIMARY KEY (topic_id);
CREATE INDEX diskless_answers_by_time ON present.diskless_answers USING btree (committed_ms);
CREATE INDEX diskless_objects_deleting ON present.diskless_objects USING btree (object_id) WHERE (state = 'deleting'::text);
CREATE INDEX diskless_objects_pending ON present.diskless_objects USING btree (changed_ms) WHERE (state = 'pending'::text);
CREATE INDEX diskless_objects_unreferenced ON present.diskless_objects USING btree (changed_ms) WHERE ((state = 'committed'::text) AND (extents = 0));
CREATE INDEX diskless_producers_by_time ON present.diskless_producers USING btree (seen_ms);
CREATE INDEX diskless_producers_open ON present.diskless_producers USING btree (partition_id, txn_first_offset) WHERE (txn_first_offset >= 0);
CREATE INDEX group_offsets_by_expiry ON present.group_offsets USING btree (expire_timestamp_ms) WHERE (expire_timestamp_ms IS NOT NULL);
CREATE INDEX group_offsets_by_topic ON present.group_offsets USING btree (topic);
CREATE UNIQUE INDEX partition_epochs_open ON present.partition_epochs USING btree (topic_id, number) WHERE (end_offset IS NULL);
CREATE INDEX pending_offsets_by_topic ON present.pending_offsets USING btree (topic);
CREATE INDEX pending_offsets_by_transaction ON present.pending_offsets USING btree (transactional_id);
ALTER TABLE ONLY present.diskless_switch_shares ADD CONSTRAINT diskless_switch_shares_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES present.diskless_switches(topic_id) ON DELETE CASCADE;
