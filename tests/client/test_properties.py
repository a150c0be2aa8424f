"""Options files are read as Java's `Properties.load` reads them, which Kafka's tools use."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import strategies as st

from penstock.client.security import read_properties, settings_of
from penstock.security.files import UnusableFile
from tests.formats.drawn import drawn

JAVA = """
import java.io.*; import java.nio.charset.StandardCharsets; import java.util.*;
public class Oracle {
  static String hex(Object text) {
    StringBuilder out = new StringBuilder();
    for (char unit : ((String) text).toCharArray()) out.append(String.format("%04x", (int) unit));
    return out.toString();
  }
  public static void main(String[] names) throws Exception {
    for (String line : new String(System.in.readAllBytes()).split("\\n")) {
      byte[] data = HexFormat.of().parseHex(line.substring(1));
      var charset = line.charAt(0) == 'u' ? StandardCharsets.UTF_8 : StandardCharsets.ISO_8859_1;
      Properties found = new Properties();
      StringBuilder out = new StringBuilder();
      try {
        found.load(new InputStreamReader(new ByteArrayInputStream(data), charset));
        for (var entry : new TreeMap<>(found).entrySet())
          out.append(hex(entry.getKey()) + "=" + hex(entry.getValue()) + ";");
      } catch (IllegalArgumentException error) { out.append("!"); }
      System.out.println(out);
    }
  }
}
"""
PIECES = st.sampled_from([
    "sasl.password", "ssl.key.password", "sasl.username", "security.protocol", "=", ":", " ", "\t",
    "\f", "\n", "\r", "\r\n", "\\", "\\\\", "\\\n", "\\\r\n  ", "#", "!", "a", "ü", "\x85",
    "\u2028", "\\u00fc", "\\ud83d\\ude00", "\\u12", "\\t", "\\n", "\\:", "\\=", "\\ ", "\\x",
    "\nsasl.password=",
])  # fmt: skip
TEXTS = st.lists(PIECES, max_size=14).map("".join).map(lambda text: "sasl.password" + text)


def javas(texts: list[bytes], tmp_path: Path) -> list[dict[str, str] | None]:
    """Return each text as Java reads it; None where it raises."""
    program = tmp_path / "Oracle.java"
    program.write_text(JAVA)
    lines = "\n".join(("u" if utf8(text) else "l") + text.hex() for text in texts)
    command = ["java", "-XX:TieredStopAtLevel=1", "-Xshare:auto", str(program)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    found: list[dict[str, str] | None] = []
    for line in done.stdout.splitlines():
        pairs = [pair.split("=") for pair in line.split(";") if pair]
        found.append(None if line == "!" else {units(name): units(value) for name, value in pairs})
    return found


def units(text: str) -> str:
    return bytes.fromhex(text).decode("utf-16-be", "surrogatepass")


def utf8(text: bytes) -> bool:
    return text == text.decode("utf-8", "replace").encode()


def test_options_are_those_that_java_reads(tmp_path: Path) -> None:
    texts = [text.encode() for text in drawn(TEXTS)]
    texts += [text.encode("latin-1", "ignore") for text in drawn(TEXTS)]
    path = tmp_path / "client.properties"
    differ = []
    for text, expected in zip(texts, javas(texts, tmp_path), strict=True):
        path.write_bytes(text)
        try:
            found = read_properties(str(path))
        except UnusableFile:
            assert expected is None or b"\\ud" in text, text  # half a pair, which Java keeps
            continue
        assert expected is not None, text
        options = {name: value for name, value in expected.items() if name in found}
        differ += [text] if found != options or "sasl.password" in expected.keys() - found else []
    assert differ == []


def test_a_login_over_several_lines_and_other_separators(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_bytes(
        b"\xef\xbb\xbfsecurity.protocol: SASL_SSL\nsasl.mechanism PLAIN\n! a comment \\\n"
        b"sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        b'  username="alice" \\\n  password="\\u00fc=1";\n'
    )
    found = read_properties(str(path))
    assert (found["security.protocol"], found["sasl.mechanism"]) == ("SASL_SSL", "PLAIN")
    assert found["sasl.jaas.config"].endswith('required username="alice" password="ü=1";')
    settings_of(found)


def test_an_escape_that_is_none_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("sasl.password=\\u12")
    with pytest.raises(
        UnusableFile, match=r"client\.properties has a .u without four hexadecimal digits"
    ):
        read_properties(str(path))
