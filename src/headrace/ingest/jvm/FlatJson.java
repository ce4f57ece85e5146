package io.headrace.json;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads the bytes of a flat JSON object into a Spark row, if the object is certainly valid.
 *
 * <p>Returns null for everything else: bytes that are not UTF-8, text that is not JSON, content after the object, a
 * missing required field, a value whose type is not certainly that of its field. Null does not mean invalid. The slow
 * parser, {@code from_json}, parses such a record and decides. So this parser may return null for any record, and must
 * never return a wrong row.
 *
 * <p>Unlike {@code from_json} it does not decode bytes into characters and back, creates no stream and no buffer per
 * record, and needs no second pass for what {@code from_json} does not check.
 */
public final class FlatJson implements Serializable {
  private static final long serialVersionUID = 1L;

  // What a field holds. The numbers are those of ingest/flat_json.py.
  private static final int TEXT = 0;
  private static final int BOOLEAN = 1;
  private static final int BYTE = 2;
  private static final int SHORT = 3;
  private static final int INT = 4;
  private static final int LONG = 5;
  private static final int DOUBLE = 6;
  private static final int DECIMAL = 7;
  private static final int TIMESTAMP = 8;
  private static final int DATE = 9;

  // Up to 2^53 and 10^22 both sides of a division are exact doubles, so that its result is the nearest one.
  private static final long EXACT = 1L << 53;
  private static final double[] TENS = {
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22
  };
  private static final long[] LONG_TENS = new long[19];

  static {
    LONG_TENS[0] = 1;
    for (int power = 1; power < LONG_TENS.length; power++) {
      LONG_TENS[power] = LONG_TENS[power - 1] * 10;
    }
  }

  // More digits than this do not surely fit into a long.
  private static final int MOST_DIGITS = 18;
  // Jackson limits depth, names and numbers. Records near these limits are left to it.
  private static final int DEEPEST = 32;
  private static final int LONGEST_NAME = 1000;
  private static final int LONGEST_NUMBER = 100;
  private static final Object UNSURE = new Object();

  private final byte[][] names;
  private final int[] kinds;
  private final int[] precisions;
  private final int[] scales;
  private final boolean[] required;
  private final int mostBytes;

  /**
   * Made once per input on the driver; tasks get copies.
   *
   * @param described a line per field: its kind, precision, scale, whether it is required (1 or 0), and its name, with
   *     tabs between them. A name holds no quote, no backslash and no control character.
   * @param mostBytes records larger than this are not read
   */
  public FlatJson(String described, int mostBytes) {
    String[] lines = described.split("\n");
    this.names = new byte[lines.length][];
    this.kinds = new int[lines.length];
    this.precisions = new int[lines.length];
    this.scales = new int[lines.length];
    this.required = new boolean[lines.length];
    this.mostBytes = mostBytes;
    for (int field = 0; field < lines.length; field++) {
      String[] parts = lines[field].split("\t", 5);
      kinds[field] = Integer.parseInt(parts[0]);
      precisions[field] = Integer.parseInt(parts[1]);
      scales[field] = Integer.parseInt(parts[2]);
      required[field] = parts[3].equals("1");
      names[field] = parts[4].getBytes(StandardCharsets.UTF_8);
    }
  }

  /** Return the row, or null when anything is in doubt. The row's texts are parts of {@code value}. */
  public InternalRow read(byte[] value) {
    if (value == null || value.length > mostBytes) {
      return null;
    }
    return new Reading(value).row();
  }

  /** One reading of one record, from its first byte to its last. */
  private final class Reading {
    private final byte[] in;
    private final int end;
    private int at = 0;

    Reading(byte[] in) {
      this.in = in;
      this.end = in.length;
    }

    InternalRow row() {
      Object[] found = new Object[kinds.length];
      boolean[] seen = new boolean[kinds.length];
      if (skipSpace() != '{') {
        return null;
      }
      at++;
      int next = 0;
      int sign = skipSpace();
      if (sign == '}') {
        at++;
      } else {
        while (true) {
          if (sign != '"') {
            return null;
          }
          int field = name(next);
          if (field == -2 || skipSpace() != ':') {
            return null;
          }
          at++;
          if (field < 0) {
            if (!skipValue(0)) {
              return null;
            }
          } else {
            Object read = value(field);
            if (read == UNSURE || seen[field]) {
              return null;
            }
            seen[field] = true;
            found[field] = read;
            next = field + 1;
          }
          sign = skipSpace();
          if (sign == '}') {
            at++;
            break;
          }
          if (sign != ',') {
            return null;
          }
          at++;
          sign = skipSpace();
        }
      }
      if (skipSpace() != -1) {
        return null;
      }
      for (int field = 0; field < found.length; field++) {
        if (required[field] && found[field] == null) {
          return null;
        }
      }
      return new GenericInternalRow(found);
    }

    /** Go to the next byte that is not blank and return it, or -1 at the end. */
    private int skipSpace() {
      while (at < end) {
        byte sign = in[at];
        if (sign != ' ' && sign != '\n' && sign != '\r' && sign != '\t') {
          return sign & 0xFF;
        }
        at++;
      }
      return -1;
    }

    /** Read a name. Returns the number of its field, -1 for one that is not asked for, -2 in doubt. */
    private int name(int expected) {
      // Producers write fields in one order, mostly the declared one.
      if (expected < names.length && isNamed(expected)) {
        return expected;
      }
      for (int field = 0; field < names.length; field++) {
        if (field != expected && isNamed(field)) {
          return field;
        }
      }
      // A name with escapes may be one of ours in disguise.
      return plainName() ? -1 : -2;
    }

    private boolean plainName() {
      int first = at;
      return skipText() == PLAIN && at - first <= LONGEST_NAME;
    }

    private boolean isNamed(int field) {
      byte[] name = names[field];
      int first = at + 1;
      int last = first + name.length;
      if (last >= end || in[last] != '"' || !Arrays.equals(in, first, last, name, 0, name.length)) {
        return false;
      }
      at = last + 1;
      return true;
    }

    private Object value(int field) {
      int sign = skipSpace();
      if (sign == 'n') {
        return word("null") ? null : UNSURE;
      }
      switch (kinds[field]) {
        case TEXT:
          return sign == '"' ? text() : UNSURE;
        case BOOLEAN:
          if (sign == 't') {
            return word("true") ? Boolean.TRUE : UNSURE;
          }
          return sign == 'f' && word("false") ? Boolean.FALSE : UNSURE;
        case TIMESTAMP:
          return sign == '"' ? timestamp() : UNSURE;
        case DATE:
          return sign == '"' ? date() : UNSURE;
        case DOUBLE:
          return real();
        case DECIMAL:
          return decimal(precisions[field], scales[field]);
        default:
          return integer(kinds[field]);
      }
    }

    private boolean word(String word) {
      int length = word.length();
      if (at + length > end) {
        return false;
      }
      for (int i = 0; i < length; i++) {
        if (in[at + i] != word.charAt(i)) {
          return false;
        }
      }
      at += length;
      return true;
    }

    // How a text was written.
    private static final int BROKEN = 0;
    private static final int PLAIN = 1;
    private static final int ESCAPED = 2;

    /** Go past the text that begins here, and say how it is written. It is valid UTF-8 unless it is broken. */
    private int skipText() {
      int kind = PLAIN;
      int i = at + 1;
      while (i < end) {
        byte sign = in[i];
        if (sign == '"') {
          at = i + 1;
          return kind;
        }
        if (sign >= ' ') {
          i++;
          if (sign == '\\') {
            kind = ESCAPED;
            int length = escape(i);
            if (length == 0) {
              return BROKEN;
            }
            i += length;
          }
        } else if (sign < 0) {
          int length = wide(i);
          if (length == 0) {
            return BROKEN;
          }
          i += length;
        } else {
          return BROKEN;
        }
      }
      return BROKEN;
    }

    /** Return the bytes behind a backslash that belong to it, or 0 when they are no escape. */
    private int escape(int i) {
      if (i >= end) {
        return 0;
      }
      switch (in[i]) {
        case '"':
        case '\\':
        case '/':
        case 'b':
        case 'f':
        case 'n':
        case 'r':
        case 't':
          return 1;
        case 'u':
          return hex(i + 1) < 0 ? 0 : 5;
        default:
          return 0;
      }
    }

    /** Return the unit of UTF-16 that four digits name, or -1. */
    private int hex(int i) {
      if (i + 4 > end) {
        return -1;
      }
      int unit = 0;
      for (int j = i; j < i + 4; j++) {
        int digit = Character.digit(in[j], 16);
        if (digit < 0) {
          return -1;
        }
        unit = unit << 4 | digit;
      }
      return unit;
    }

    /** Return the length of a character beyond ASCII, or 0 when the bytes are not UTF-8: shortest forms, no halves. */
    private int wide(int i) {
      int first = in[i] & 0xFF;
      if (first >= 0xC2 && first <= 0xDF) {
        return i + 1 < end && follows(i + 1) ? 2 : 0;
      }
      if (first >= 0xE0 && first <= 0xEF) {
        if (i + 2 >= end || !follows(i + 1) || !follows(i + 2)) {
          return 0;
        }
        int second = in[i + 1] & 0xFF;
        boolean invalid = first == 0xE0 && second < 0xA0 || first == 0xED && second > 0x9F;
        return invalid ? 0 : 3;
      }
      if (first >= 0xF0 && first <= 0xF4) {
        if (i + 3 >= end || !follows(i + 1) || !follows(i + 2) || !follows(i + 3)) {
          return 0;
        }
        int second = in[i + 1] & 0xFF;
        boolean invalid = first == 0xF0 && second < 0x90 || first == 0xF4 && second > 0x8F;
        return invalid ? 0 : 4;
      }
      return 0;
    }

    private boolean follows(int i) {
      return (in[i] & 0xC0) == 0x80;
    }

    private Object text() {
      int first = at + 1;
      int kind = skipText();
      if (kind == PLAIN) {
        return UTF8String.fromBytes(in, first, at - 1 - first);
      }
      return kind == ESCAPED ? unescaped(first, at - 1) : UNSURE;
    }

    private Object unescaped(int first, int last) {
      byte[] out = new byte[last - first];
      int length = 0;
      for (int i = first; i < last; i++) {
        byte sign = in[i];
        if (sign != '\\') {
          out[length++] = sign;
          continue;
        }
        i++;
        switch (in[i]) {
          case 'b':
            out[length++] = '\b';
            break;
          case 'f':
            out[length++] = '\f';
            break;
          case 'n':
            out[length++] = '\n';
            break;
          case 'r':
            out[length++] = '\r';
            break;
          case 't':
            out[length++] = '\t';
            break;
          case 'u':
            int point = hex(i + 1);
            i += 4;
            if (Character.isHighSurrogate((char) point)) {
              int low = i + 6 < last && in[i + 1] == '\\' && in[i + 2] == 'u' ? hex(i + 3) : -1;
              if (low < 0 || !Character.isLowSurrogate((char) low)) {
                return UNSURE;
              }
              point = Character.toCodePoint((char) point, (char) low);
              i += 6;
            } else if (Character.isLowSurrogate((char) point)) {
              return UNSURE;
            }
            length = put(point, out, length);
            break;
          default:
            out[length++] = in[i];
        }
      }
      return UTF8String.fromBytes(out, 0, length);
    }

    private int put(int point, byte[] out, int length) {
      if (point < 0x80) {
        out[length++] = (byte) point;
      } else if (point < 0x800) {
        out[length++] = (byte) (0xC0 | point >> 6);
        out[length++] = (byte) (0x80 | point & 0x3F);
      } else if (point < 0x10000) {
        out[length++] = (byte) (0xE0 | point >> 12);
        out[length++] = (byte) (0x80 | point >> 6 & 0x3F);
        out[length++] = (byte) (0x80 | point & 0x3F);
      } else {
        out[length++] = (byte) (0xF0 | point >> 18);
        out[length++] = (byte) (0x80 | point >> 12 & 0x3F);
        out[length++] = (byte) (0x80 | point >> 6 & 0x3F);
        out[length++] = (byte) (0x80 | point & 0x3F);
      }
      return length;
    }

    // The last number: its digits without sign and point, how many of them, and how many behind the point.
    private long digits;
    private int count;
    private int behind;
    private boolean negative;
    private boolean plain;

    /** Go past the number that begins here. Returns false when it is none, or too long to be read here. */
    private boolean number() {
      digits = 0;
      count = 0;
      behind = 0;
      plain = true;
      negative = at < end && in[at] == '-';
      if (negative) {
        at++;
      }
      int first = at;
      while (at < end && in[at] >= '0' && in[at] <= '9') {
        digits = digits * 10 + (in[at] - '0');
        at++;
      }
      count = at - first;
      if (count == 0 || count > 1 && in[first] == '0') {
        return false;
      }
      if (at < end && in[at] == '.') {
        at++;
        int point = at;
        while (at < end && in[at] >= '0' && in[at] <= '9') {
          digits = digits * 10 + (in[at] - '0');
          at++;
        }
        behind = at - point;
        if (behind == 0) {
          return false;
        }
        count += behind;
      }
      if (at < end && (in[at] == 'e' || in[at] == 'E')) {
        plain = false;
        at++;
        if (at < end && (in[at] == '+' || in[at] == '-')) {
          at++;
        }
        int power = at;
        while (at < end && in[at] >= '0' && in[at] <= '9') {
          at++;
        }
        if (at == power) {
          return false;
        }
      }
      return at - first <= LONGEST_NUMBER;
    }

    private Object real() {
      int first = at;
      // Jackson reads the integer -0 as 0, without a sign.
      if (!number() || negative && digits == 0) {
        return UNSURE;
      }
      if (plain && count <= MOST_DIGITS && digits <= EXACT && behind < TENS.length) {
        double size = digits / TENS[behind];
        return negative ? -size : size;
      }
      double size = Double.parseDouble(new String(in, first, at - first, StandardCharsets.ISO_8859_1));
      return Double.isInfinite(size) ? UNSURE : (Object) size;
    }

    private Object decimal(int precision, int scale) {
      if (!number() || !plain || count > MOST_DIGITS || behind > scale) {
        return UNSURE;
      }
      // Digits before the point, at most as many as the type has. Leading zeros do not count.
      if (count - behind > precision - scale && digits >= LONG_TENS[behind]) {
        return UNSURE;
      }
      int missing = scale - behind;
      if (count + missing > MOST_DIGITS) {
        return UNSURE;
      }
      long unscaled = digits * LONG_TENS[missing];
      return Decimal.createUnsafe(negative ? -unscaled : unscaled, precision, scale);
    }

    private Object integer(int kind) {
      if (!number() || !plain || behind > 0 || count > MOST_DIGITS) {
        return UNSURE;
      }
      long size = negative ? -digits : digits;
      switch (kind) {
        case BYTE:
          return size == (byte) size ? (Object) (byte) size : UNSURE;
        case SHORT:
          return size == (short) size ? (Object) (short) size : UNSURE;
        case INT:
          return size == (int) size ? (Object) (int) size : UNSURE;
        case LONG:
          return size;
        default:
          return UNSURE;
      }
    }

    /** Read {@code "2026-01-31T23:59:59.123456Z"}, the fraction of one to six digits or none. */
    private Object timestamp() {
      int i = at + 1;
      long day = day(i);
      if (day == Long.MIN_VALUE || i + 20 >= end) {
        return UNSURE;
      }
      int hour = two(i + 11);
      int minute = two(i + 14);
      int second = two(i + 17);
      boolean apart = (in[i + 10] == 'T' || in[i + 10] == ' ') && in[i + 13] == ':' && in[i + 16] == ':';
      if (!apart || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59) {
        return UNSURE;
      }
      i += 19;
      int micros = 0;
      if (in[i] == '.') {
        i++;
        int first = i;
        while (i < end && i - first < 6 && in[i] >= '0' && in[i] <= '9') {
          micros = micros * 10 + (in[i] - '0');
          i++;
        }
        int length = i - first;
        if (length == 0) {
          return UNSURE;
        }
        micros *= (int) LONG_TENS[6 - length];
      }
      if (i + 1 >= end || in[i] != 'Z' || in[i + 1] != '"') {
        return UNSURE;
      }
      at = i + 2;
      return (((day * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000L + micros;
    }

    /** Read {@code "2026-01-31"}. */
    private Object date() {
      int i = at + 1;
      long day = day(i);
      if (day == Long.MIN_VALUE || i + 10 >= end || in[i + 10] != '"') {
        return UNSURE;
      }
      at = i + 11;
      return (int) day;
    }

    /** Return the days since 1970 of a date of ten letters, or the least long when it is none. */
    private long day(int i) {
      if (i + 10 > end || in[i + 4] != '-' || in[i + 7] != '-') {
        return Long.MIN_VALUE;
      }
      int century = two(i);
      int rest = two(i + 2);
      int month = two(i + 5);
      int day = two(i + 8);
      int year = century * 100 + rest;
      if (century < 0 || rest < 0 || year < 1 || month < 1 || month > 12 || day < 1 || day > lengthOf(month, year)) {
        return Long.MIN_VALUE;
      }
      return LocalDate.of(year, month, day).toEpochDay();
    }

    private int lengthOf(int month, int year) {
      switch (month) {
        case 2:
          return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 29 : 28;
        case 4:
        case 6:
        case 9:
        case 11:
          return 30;
        default:
          return 31;
      }
    }

    private int two(int i) {
      int tens = in[i] - '0';
      int ones = in[i + 1] - '0';
      return tens < 0 || tens > 9 || ones < 0 || ones > 9 ? -1 : tens * 10 + ones;
    }

    /** Go past a value that nobody asked for. It has to be JSON all the same. */
    private boolean skipValue(int depth) {
      int sign = skipSpace();
      switch (sign) {
        case '"':
          return skipText() != BROKEN;
        case 't':
          return word("true");
        case 'f':
          return word("false");
        case 'n':
          return word("null");
        case '{':
        case '[':
          return depth < DEEPEST && skipAll(sign == '{', depth);
        default:
          return number();
      }
    }

    private boolean skipAll(boolean named, int depth) {
      int close = named ? '}' : ']';
      at++;
      if (skipSpace() == close) {
        at++;
        return true;
      }
      while (true) {
        if (named) {
          if (skipSpace() != '"' || !plainName() || skipSpace() != ':') {
            return false;
          }
          at++;
        }
        if (!skipValue(depth + 1)) {
          return false;
        }
        int sign = skipSpace();
        at++;
        if (sign == close) {
          return true;
        }
        if (sign != ',') {
          return false;
        }
      }
    }
  }
}
