#include "formats/malformed_npy.h"

#include <cstdint>
#include <cstring>

namespace warpweave::testing {
namespace {

std::string with_length(std::uint32_t length, const std::string& rest, int version) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  const std::size_t size = version == 1 ? 2 : 4;
  std::string field(size, '\0');
  std::memcpy(field.data(), &length, size);
  return bytes + field + rest;
}

std::string dict(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

}  // namespace

std::string npy_bytes(const std::string& header, const std::string& data, int version) {
  return with_length(static_cast<std::uint32_t>(header.size()), header, version) + data;
}

std::vector<MalformedFile> malformed_npy() {
  std::vector<MalformedFile> files;
  const auto raw = [&](const std::string& kind, const std::string& bytes, const std::string& phrase) {
    files.push_back({kind, bytes, phrase});
  };
  const auto header = [&](const std::string& kind, const std::string& text, const std::string& phrase,
                          std::size_t data_bytes = 12) {
    files.push_back({kind, npy_bytes(text, std::string(data_bytes, '\0')), phrase});
  };
  const std::string good = dict("'<f4'", "False", "(3,)");
  const std::string whole = npy_bytes(good, std::string(12, '\0'));

  raw("empty", "", "the file is empty");
  raw("cut_in_magic", whole.substr(0, 3), "truncated inside the magic string");
  raw("cut_before_version", whole.substr(0, 6), "truncated before the format version");
  raw("cut_in_version", whole.substr(0, 7), "truncated before the format version");
  raw("cut_in_length", whole.substr(0, 9), "truncated inside the header length");
  raw("cut_in_length_2", npy_bytes(good, "", 2).substr(0, 11), "truncated inside the header length");
  raw("cut_in_header", whole.substr(0, 30), "but only 20 bytes follow it: truncated?");
  raw("cut_before_data", whole.substr(0, 10 + good.size()),
      "needs 12 bytes, but 0 follow the header: truncated?");
  raw("cut_in_data", whole.substr(0, whole.size() - 1),
      "needs 12 bytes, but 11 follow the header: truncated?");
  raw("trailing_byte", whole + "x", "needs 12 bytes, but 13 follow the header: trailing bytes");
  raw("second_array", whole + whole, "trailing bytes");
  raw("text_file", "1.0, 2.0, 3.0\n", "does not start as a .npy file");
  raw("npz", "PK\x03\x04 and more", "is a zip archive");
  raw("version_0", with_length(4, "{}  ", 0), "format version 0.0 is unknown, expected 1.0, 2.0 or 3.0");
  raw("version_4", with_length(4, "{}  ", 4), "format version 4.0 is unknown");
  raw("version_1_1", std::string("\x93NUMPY\1\1\4\0{}  ", 14), "format version 1.1 is unknown");
  raw("length_zero", with_length(0, std::string(12, '\0'), 1),
      "malformed header, expected a dict at its end");
  raw("length_past_the_end", with_length(65535, good, 1), "the header length is 65535, but only");
  raw("length_2_to_32", with_length(0xFFFFFFFFu, good, 2), "the header length is 4294967295, but only");
  raw("length_2_to_32_version_3", with_length(0xFFFFFFFFu, good, 3),
      "the header length is 4294967295, but only");
  raw("length_over_the_limit", npy_bytes(good + std::string(65536, ' '), std::string(12, '\0'), 2),
      "over the limit");
  raw("length_cuts_dict", with_length(20, good + std::string(12, '\0'), 1), "malformed header");

  header("fortran_order", dict("'<f4'", "True", "(3, 1)"), "the array is in Fortran order, expected C order");
  header("big_endian", dict("'>f4'", "False", "(3,)"), "dtype '>f4' is big-endian");
  header("big_endian_double", dict("'>f8'", "False", "(3,)"), "dtype '>f8' is big-endian");
  header("native_order", dict("'=f4'", "False", "(3,)"), "dtype '=f4' cannot be used, expected '<f4'");
  header("no_byte_order", dict("'f4'", "False", "(3,)"), "dtype 'f4' cannot be used");
  header("integers", dict("'<i4'", "False", "(3,)"), "dtype '<i4' cannot be used");
  header("long_integers", dict("'<i8'", "False", "(3,)"), "dtype '<i8' cannot be used");
  header("complex", dict("'<c8'", "False", "(3,)"), "dtype '<c8' cannot be used");
  header("long_double", dict("'<f16'", "False", "(3,)"), "dtype '<f16' cannot be used");
  header("unicode_strings", dict("'<U1'", "False", "(3,)"), "dtype '<U1' cannot be used");
  header("objects", dict("'|O'", "False", "(3,)"), "dtype '|O' is Python objects");
  header("structured", dict("[('x', '<f4')]", "False", "(3,)"), "a structured dtype cannot be used");
  header("descr_number", dict("4", "False", "(3,)"), "expected the dtype as a string");
  header("descr_none", dict("None", "False", "(3,)"), "expected the dtype as a string");
  header("descr_escape", dict("'\\x3cf4'", "False", "(3,)"), "expected a string without escapes");
  header("order_number", dict("'<f4'", "0", "(3,)"), "expected True or False at '0, ");
  header("order_none", dict("'<f4'", "None", "(3,)"), "expected True or False");
  header("order_lower_case", dict("'<f4'", "false", "(3,)"), "expected True or False");

  header("shape_negative", dict("'<f4'", "False", "(-3,)"), "the shape has a negative size");
  header("shape_two_negatives", dict("'<f4'", "False", "(-3, -1)"), "the shape has a negative size");
  header("shape_number", dict("'<f4'", "False", "3"), "expected a tuple of sizes at '3");
  header("shape_list", dict("'<f4'", "False", "[3]"), "expected a tuple of sizes");
  header("shape_without_comma", dict("'<f4'", "False", "(3)"), "expected ',' after the only size of a tuple");
  header("shape_floats", dict("'<f4'", "False", "(3.0,)"), "malformed header");
  header("shape_strings", dict("'<f4'", "False", "('3',)"), "expected an integer");
  header("shape_python_2_long", dict("'<f4'", "False", "(3L,)"), "malformed header");
  header("shape_nested", dict("'<f4'", "False", "((3,),)"), "expected an integer");
  header("shape_expression", dict("'<f4'", "False", "(1+2,)"), "malformed header");
  header("shape_2_to_63", dict("'<f4'", "False", "(9223372036854775808,)"), "a size that overflows 63 bits");
  header("shape_wraps_to_12", dict("'<f4'", "False", "(4611686018427387907,)"), "overflows 63 bits");
  header("product_overflows", dict("'<f4'", "False", "(4294967296, 4294967296)"), "overflows 63 bits", 0);
  header("terabytes", dict("'<f4'", "False", "(1000, 1000, 1000, 1000)"),
         "needs 4000000000000 bytes, but 12 follow");
  std::string ones;
  for (int i = 0; i < 65; ++i) ones += "1,";
  header("rank_65", dict("'<f4'", "False", "(" + ones + ")"), "the shape has more than 64 sizes", 4);
  header("deep_tuples", dict("'<f4'", "False", std::string(50000, '(')), "expected an integer");

  header("missing_descr", "{'fortran_order': False, 'shape': (3,), }\n", "the header lacks the key 'descr'");
  header("missing_order", "{'descr': '<f4', 'shape': (3,), }\n", "the header lacks the key 'fortran_order'");
  header("missing_shape", "{'descr': '<f4', 'fortran_order': False, }\n", "the header lacks the key 'shape'");
  header("duplicate_shape", "{'descr': '<f4', 'fortran_order': False, 'shape': (9,), 'shape': (3,)}\n",
         "duplicate key 'shape'");
  header("duplicate_descr", "{'descr': '<f8', 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}\n",
         "duplicate key 'descr'");
  header("unknown_key", "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'x': 1}\n",
         "unknown key 'x'");
  header("key_without_quotes", "{descr: '<f4', 'fortran_order': False, 'shape': (3,)}\n", "expected a key");
  header("not_a_dict", "['descr', '<f4']\n", "expected a dict at '[");
  header("a_call", "dict(descr='<f4', fortran_order=False, shape=(3,))\n", "expected a dict at 'dict(");
  header("no_colon", "{'descr' '<f4'}\n", "expected ':' after a key");
  header("no_comma", "{'descr': '<f4' 'fortran_order': False, 'shape': (3,)}\n",
         "expected ',' or '}' after a value");
  header("never_ends", "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)",
         "expected ',' or '}' after a value");
  header("string_never_ends", "{'descr': '<f4, \n", "expected the end of a string");
  header("text_after_dict", dict("'<f4'", "False", "(3,)") + "exit()\n",
         "expected nothing after the dict at 'exit()");
  header("nul_after_dict", dict("'<f4'", "False", "(3,)") + std::string(1, '\0'),
         "expected nothing after the dict");
  header("line_break_in_descr", dict("'<f\n4'", "False", "(3,)"), "dtype '<f\\x0a4' cannot be used");
  header("not_utf8", dict("'<f\xFF'", "False", "(3,)"), "dtype '<f\\xff' cannot be used");
  return files;
}

}  // namespace warpweave::testing
