"""Columns of every type that both connectors know, and values of each as SQL literals."""

from __future__ import annotations

from typing import Final

EXTENSIONS: Final = ("hstore", "citext", "ltree")
TYPES: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'so so', 'glad ü')",
    "CREATE TYPE pair AS (x int, y text)",
    "CREATE DOMAIN amount AS numeric(12, 3) CHECK (VALUE > -100)",
    "CREATE DOMAIN dearer AS amount NOT NULL DEFAULT 0",
    "CREATE DOMAIN code AS varchar(5)",
    "CREATE DOMAIN moment AS timestamp(3)",
    "CREATE DOMAIN digits AS int[]",
)
_STAMPS: Final = (
    "2024-02-29 23:59:59.123456", "1970-01-01", "1969-12-31 23:59:59.999999", "0001-01-01",
    "1582-10-10 12:00", "9999-12-31 23:59:59.999", "2000-01-01 00:00:00.0005",
)  # fmt: skip
_FAR_STAMPS: Final = (
    "0044-03-15 12:00:00 BC", "4713-01-01 00:00:00 BC", "10000-01-01 01:02:03.4",
    "294276-12-31 23:59:59.999999", "infinity", "-infinity",
)  # fmt: skip
_TIMES: Final = ("00:00:00", "23:59:59.999999", "12:34:56.7", "24:00:00", "01:02:03.000004")
_ZONES: Final = ("+00", "+02", "-05:30", "+14", "-12")
_WHOLE: Final = ("0", "1", "-1", "127", "128", "-128", "-129", "255", "256", "32767", "-32768")
_ODD_NUMBERS: Final = ("NaN",)
_TEXTS: Final = (
    "", "a", "it's \"q\" \\ {}", "ü€😀", "  lead  ", "line\nfeed\ttab\r", "NULL", "\x01\x1f\x7f",
    "null", "{\"a\": 1}", "\u2028",
)  # fmt: skip


def _quoted(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("E'" + t.replace("\\", "\\\\").replace("'", "\\'") + "'" for t in texts)


def _numbers(precision: int, scale: int) -> tuple[str, ...]:
    """Return numbers that fit into numeric(precision, scale)."""
    largest = int("9" * precision)
    found = [
        0,
        1,
        -1,
        127,
        128,
        -128,
        -129,
        99_999,
        -(2**31),
        2**63,
        -(2**63) - 1,
        largest,
        -largest,
    ]
    return tuple(
        f"{number}::numeric * 10::numeric ^ {-scale}" if scale <= 0 else f"{number}e{-scale}"
        for number in found
        if abs(number) <= largest
    )


NUMERICS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "n_5_m3": ("numeric(5, -3)", _numbers(5, -3)),
    "n_2_m1": ("numeric(2, -1)", _numbers(2, -1)),
    "n_9": ("numeric(9)", _numbers(9, 0)),
    "n_1_0": ("numeric(1, 0)", _numbers(1, 0)),
    "n_12_2": ("numeric(12, 2)", (*_numbers(12, 2), *_quoted(_ODD_NUMBERS))),
    "n_18_18": ("numeric(18, 18)", _numbers(18, 18)),
    "n_19_4": ("numeric(19, 4)", _numbers(19, 4)),
    "n_38_10": ("numeric(38, 10)", _numbers(38, 10)),
    "n_30_30": ("numeric(30, 30)", _numbers(30, 30)),
    "n_3_5": ("numeric(3, 5)", _numbers(3, 5)),
    "n_500_100": ("numeric(500, 100)", ("1e-100", "-12345678901234567890.5", "1e399")),
    "n_any": (
        "numeric",
        ("0", "0.0", "0.000", "1", "-1.50", "1e20", "1e-20", "123456789012345678901234567890.12345",
         "-0.1", "1000", *_quoted(_ODD_NUMBERS)),
    ),
    "money": ("money", ("'0'", "'12.34'", "'-0.01'", "'-92233720368547758.08'",
                        "'92233720368547758.07'", "'1234567.5'")),
    "a_num": ("numeric(10, 2)[]", ("'{1,2.5,NULL}'", "'{}'", "'{-0.01}'")),
    "a_any": ("numeric[]", ("'{1,2.50,NULL}'", "'{}'", "'{-0.01}'")),
    "d_amount": ("amount", ("0", "1.5", "-99.999")),
    "d_dearer": ("dearer", ("0", "1.5", "-99.999")),
}  # fmt: skip
"""Columns whose form depends on the setting for decimals."""

COLUMNS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    **NUMERICS,
    "i2": ("smallint", ("0", "-32768", "32767")),
    "i4": ("integer", ("0", "-2147483648", "2147483647")),
    "i8": ("bigint", ("0", "-9223372036854775808", "9223372036854775807", "9007199254740993")),
    "s4": ("serial", ("1", "2")),
    "f4": ("real", ("0", "'-0'", "1.5", "3.4028235e38", "1e-45", "0.1", "'NaN'", "'Infinity'",
                    "'-Infinity'", "16777216", "123456.789", "1e10", "1e7", "0.001", "0.0001")),
    "f8": ("double precision",
           ("0", "'-0'", "1.5", "1.7976931348623157e308", "5e-324", "0.1", "'NaN'", "'Infinity'",
            "'-Infinity'", "1e21", "123456789.123456789", "1e15", "1e7", "9999999", "0.001",
            "0.00012", "100")),
    "ch": ("char", _quoted(("a", "", "ü"))),
    "ch5": ("char(5)", _quoted(("a", "", "ab cd", "ü€😀"))),
    "vc": ("varchar", _quoted(_TEXTS)),
    "vc5": ("varchar(5)", _quoted(("a", "", "abcde"))),
    "tx": ("text", _quoted(_TEXTS)),
    "bp": ("bpchar", _quoted(("a", " b ", ""))),
    "one": ('"char"', ("'a'", "''", "'\\001'", "'\\377'")),
    "nm": ("name", ("'n'", "''", "'ü'")),
    "by": ("bytea", ("'\\x'", "'\\x00'", "'\\x00ff10'", "'\\xdeadbeef'",
                     "decode(repeat('0f', 300), 'hex')")),
    "bl": ("boolean", ("true", "false")),
    "b1": ("bit", ("B'0'", "B'1'")),
    "b_1": ("bit(1)", ("B'0'", "B'1'")),
    "b3": ("bit(3)", ("B'000'", "B'101'", "B'111'")),
    "b17": ("bit(17)", ("B'00000000000000001'", "B'10000000010000000'")),
    "vb": ("bit varying", ("B''", "B'1'", "B'101010101'", "B'0000000000000001'")),
    "vb3": ("bit varying(3)", ("B''", "B'1'", "B'110'")),
    "vb70": ("bit varying(70)", ("B'1'", "B'" + "10" * 35 + "'")),
    "dt": ("date", _quoted(("2024-02-29", "1970-01-01", "1969-12-31", "0001-01-01", "1582-10-04",
                            "1582-10-15", "9999-12-31", "10000-01-01", "5874897-12-31",
                            "0044-03-15 BC", "4713-01-01 BC", "infinity", "-infinity"))),
    **{f"ts{p}": (f"timestamp({p})", _quoted((*_STAMPS, *_FAR_STAMPS))) for p in range(7)},
    "ts": ("timestamp", _quoted((*_STAMPS, *_FAR_STAMPS))),
    **{
        f"tz{p}": (f"timestamptz({p})", _quoted((*_STAMPS, *_FAR_STAMPS))) for p in (0, 3, 6)
    },
    "tz": ("timestamptz", _quoted((*_STAMPS, *_FAR_STAMPS, "2024-02-29 23:59:59.1+05:45"))),
    **{f"tm{p}": (f"time({p})", _quoted(_TIMES)) for p in range(7)},
    "tm": ("time", _quoted(_TIMES)),
    **{
        f"tt{p}": (f"timetz{f'({p})' if p != '' else ''}",
                   _quoted(tuple(f"{t}{z}" for t in _TIMES for z in _ZONES)))
        for p in ("", 0, 3)
    },
    "iv": ("interval", _quoted(("0", "1 second", "-1 second", "1 day", "-1 day", "1 month",
                                "1 year 2 mons 3 days 04:05:06.789",
                                "-1 year -2 mons +3 days -04:05:06.789",
                                "1 mon -1 day", "178000000 years", "00:00:00.000001",
                                "-00:00:00.000001",
                                "25:00:00", "1 year -25:00:00.5", "7 mons", "11 mons 29 days"))),
    "uu": ("uuid", ("'00000000-0000-0000-0000-000000000000'",
                    "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'")),
    "js": ("json", _quoted(('{"a":  1, "b": [null, "ü"]}', "null", "1.50", '"t"', "[]"))),
    "jb": ("jsonb", _quoted(('{"b":  1, "a": [null, "ü"]}', "null", "1.50", '"t"', "[]"))),
    "xm": ("xml", _quoted(("<a>1</a>", "text", "<a b='c'/>"))),
    "ip": ("inet", ("'192.168.0.1'", "'192.168.0.1/24'", "'::1'", "'2001:db8::/64'")),
    "cd": ("cidr", ("'10.0.0.0/8'", "'::/0'", "'10.1.2.3'")),
    "ma": ("macaddr", ("'08:00:2b:01:02:03'",)),
    "m8": ("macaddr8", ("'08:00:2b:01:02:03:04:05'",)),
    "pt": ("point", ("'(0,0)'", "'(1.5,-2.25)'", "'(1e300,1e-300)'")),
    "r4": ("int4range", ("'[1,10)'", "'empty'", "'(,5]'", "'(,)'")),
    "r8": ("int8range", ("'[1,10)'", "'empty'")),
    "rn": ("numrange", ("'[1.5,2.5]'", "'(,1]'")),
    "rs": ("tsrange", ("'[2024-01-01,2024-02-01)'", "'(,infinity]'")),
    "rz": ("tstzrange", ("'[2024-01-01 00:00+02,2024-02-01)'", "'empty'")),
    "rd": ("daterange", ("'[2024-01-01,2024-02-01]'", "'(,)'")),
    "mr": ("int4multirange", ("'{[1,3),[5,7)}'", "'{}'")),
    "md": ("mood", ("'sad'", "'so so'", "'glad ü'")),
    "d_code": ("code", ("'a'", "'abcde'")),
    "d_moment": ("moment", ("'2024-01-01 01:02:03.4567'", "'infinity'")),
    "d_digits": ("digits", ("'{1,2}'", "'{}'")),
    "a_i2": ("smallint[]", ("'{1,2,NULL}'", "'{}'")),
    "a_i4": ("integer[]", ("'{1,2,NULL}'", "'{}'", "'{{1,2},{3,4}}'", "'[2:3]={7,8}'")),
    "a_i8": ("bigint[]", ("'{1,9223372036854775807}'", "'{NULL}'")),
    "a_f4": ("real[]", ("'{1.5,NaN,Infinity}'",)),
    "a_f8": ("double precision[]", ("'{0.1,-Infinity,NULL}'",)),
    "a_bl": ("boolean[]", ("'{t,f,NULL}'",)),
    "a_tx": ("text[]", ("ARRAY['', 'NULL', NULL, 'a,b', '{', 'q\"\\', ' s ', E'\\n']", "'{}'",
                        "ARRAY[['a','b'],['c',NULL]]")),
    "a_vc": ("varchar(5)[]", ("'{a,abcde}'",)),
    "a_ch": ("char(3)[]", ("'{a,abc}'",)),
    "a_dt": ("date[]", ("'{2024-02-29,NULL}'",)),
    "a_ts": ("timestamp[]", ("'{2024-02-29 01:02:03.4}'",)),
    "a_tz": ("timestamptz[]", ("'{2024-02-29 01:02:03.4+02}'",)),
    "a_tm": ("time[]", ("'{01:02:03.4}'",)),
    "a_tt": ("timetz[]", ("'{01:02:03.4+02}'",)),
    "a_uu": ("uuid[]", ("'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'",)),
    "a_js": ("jsonb[]", ("ARRAY['{\"a\": 1}'::jsonb, NULL]",)),
    "a_jn": ("json[]", ("ARRAY['{\"a\": 1}'::json, NULL]",)),
    "a_by": ("bytea[]", ("ARRAY['\\x00ff'::bytea, NULL]",)),
    "a_iv": ("interval[]", ("'{1 day}'",)),
    "a_md": ("mood[]", ("'{sad,\"so so\",NULL}'",)),
    "a_ip": ("inet[]", ("'{10.0.0.1}'",)),
    "a_r4": ("int4range[]", ("'{\"[1,2)\"}'",)),
    "a_b1": ("bit[]", ("'{1,0}'",)),
    "a_oid": ("oid[]", ("'{1,4294967295}'",)),
    "a_cit": ("citext[]", ("'{A,b}'",)),
    "a_hs": ("hstore[]", ("ARRAY['a=>1'::hstore]",)),
    "a_lt": ("ltree[]", ("'{a.b}'",)),
    "hs": ("hstore", ("'a=>1,b=>NULL'", "''", "'\"q\\\"\"=>\"\\\\ ü\"'")),
    "ct": ("citext", ("'Abc'", "''")),
    "lt": ("ltree", ("'a.b.c'", "''")),
    "tv": ("tsvector", ("'fat:1 cat:2'", "''")),
    "tq": ("tsquery", ("'fat & rat'",)),
    "od": ("oid", ("0", "4294967295")),
    "co": ("pair", ("ROW(1, 'a')",)),
    "bx": ("box", ("'(1,2),(3,4)'",)),
    "ln": ("line", ("'{1,2,3}'",)),
    "ls": ("lseg", ("'[(1,2),(3,4)]'",)),
    "pa": ("path", ("'[(1,2),(3,4)]'",)),
    "po": ("polygon", ("'((1,2),(3,4))'",)),
    "ci": ("circle", ("'<(1,2),3>'",)),
    "lsn": ("pg_lsn", ("'16/B374D848'",)),
    "rc": ("regclass", ("'pg_class'",)),
    "jp": ("jsonpath", ("'$.a'",)),
    "xid": ("xid", ("'7'",)),
    "xid8": ("xid8", ("'7'",)),
}  # fmt: skip
GENERATED: Final = "gen integer GENERATED ALWAYS AS (i4 / 2 + 1) STORED"
ROWS: Final = max(len(values) for _, values in COLUMNS.values()) + 1


def statements(table: str, columns: dict[str, tuple[str, tuple[str, ...]]]) -> list[str]:
    """Return the statements that create a table and its rows; the last row has only nulls."""
    declared = [f"{name} {kind}" for name, (kind, _) in columns.items()]
    more = [GENERATED] if "i4" in columns else []
    made = [
        f"CREATE TABLE {table} (id bigint PRIMARY KEY, mark int, {', '.join([*declared, *more])})"
    ]
    names = ", ".join(columns)
    made += [
        f"INSERT INTO {table} (id, {names}) VALUES ({row}, "
        + ", ".join(values[row % len(values)] for _, values in columns.values())
        + ")"
        for row in range(ROWS - 1)
    ]
    return [
        *made,
        f"INSERT INTO {table} (id, d_dearer, s4) VALUES ({ROWS - 1}, 0, 0)"
        if "s4" in columns
        else f"INSERT INTO {table} (id, d_dearer) VALUES ({ROWS - 1}, 0)",
    ]
