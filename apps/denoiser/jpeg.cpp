// JPEG by libjpeg. Its errors arrive by longjmp, which must not pass over a frame that owns C++ objects: the
// functions that call setjmp hold plain data only, and whatever owns memory lives in their callers.
#include <fmt/format.h>

#include <csetjmp>
#include <cstdio>
// jpeglib.h needs size_t and FILE declared before it.
#include <jerror.h>
#include <jpeglib.h>

#include "denoiser/exif.h"
#include "denoiser/picture.h"
#include "denoiser/picture_codecs.h"
#include "warpweave/error.h"

namespace warpweave::denoiser {
namespace {

// Each 8 x 8 block of the finest component takes one bit or more of Huffman code for its mean.
constexpr std::int64_t kMostPixelsPerByte = 8 * 64;
// A progressive file may repeat scans without end, each as costly as a whole picture; real ones have about
// ten.
constexpr int kMostScans = 100;

// First member first: libjpeg hands back a pointer to it.
struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf jump;
  char text[JMSG_LENGTH_MAX] = {};
};

struct ProgressMonitor {
  jpeg_progress_mgr base;
};

[[noreturn]] void give_up(j_common_ptr info) {
  auto* errors = reinterpret_cast<ErrorManager*>(info->err);
  info->err->format_message(info, errors->text);
  std::longjmp(errors->jump, 1);
}

// libjpeg goes on after damaged data and fills in grey; half a picture is not what anybody wants cleaned.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
      give_up(info);
    default:
      return;
  }
}

void drop_text(j_common_ptr) {}

void count_scans(j_common_ptr info) {
  const auto* decoder = reinterpret_cast<j_decompress_ptr>(info);
  if (decoder->input_scan_number <= kMostScans) return;
  auto* errors = reinterpret_cast<ErrorManager*>(info->err);
  std::snprintf(errors->text, sizeof errors->text, "it has more than %d scans", kMostScans);
  std::longjmp(errors->jump, 1);
}

// Owns libjpeg's state for one read.
struct Reader {
  jpeg_decompress_struct decoder = {};
  ErrorManager errors = {};
  ProgressMonitor progress = {};

  Reader() {
    decoder.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = give_up;
    errors.base.emit_message = on_message;
    errors.base.output_message = drop_text;
    progress.base.progress_monitor = count_scans;
  }
  ~Reader() { jpeg_destroy_decompress(&decoder); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
};

bool read_header(Reader& reader, const std::uint8_t* bytes, std::size_t count) {
  if (setjmp(reader.errors.jump)) return false;
  jpeg_create_decompress(&reader.decoder);
  reader.decoder.progress = &reader.progress.base;
  jpeg_mem_src(&reader.decoder, bytes, static_cast<unsigned long>(count));
  jpeg_save_markers(&reader.decoder, JPEG_APP0 + 1, 0xffff);  // EXIF
  jpeg_read_header(&reader.decoder, TRUE);
  return true;
}

bool start(Reader& reader) {
  if (setjmp(reader.errors.jump)) return false;
  reader.decoder.out_color_space = reader.decoder.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(&reader.decoder);
  return true;
}

bool read_rows(Reader& reader, std::uint8_t* samples, std::size_t row_bytes) {
  if (setjmp(reader.errors.jump)) return false;
  while (reader.decoder.output_scanline < reader.decoder.output_height) {
    JSAMPROW row = samples + reader.decoder.output_scanline * row_bytes;
    jpeg_read_scanlines(&reader.decoder, &row, 1);
  }
  jpeg_finish_decompress(&reader.decoder);
  return true;
}

[[noreturn]] void fail(const Reader& reader, const std::string& name) {
  throw Error(ErrorCode::input, fmt::format("{}: is a damaged JPEG picture: {}", name, reader.errors.text));
}

int orientation(const jpeg_decompress_struct& decoder) {
  for (const jpeg_marker_struct* m = decoder.marker_list; m; m = m->next) {
    if (const int found = exif_orientation({m->data, m->data_length})) return found;
  }
  return 1;
}

}  // namespace

DecodedPicture decode_jpeg(std::span<const std::uint8_t> file, const std::string& name) {
  Reader reader;
  if (!read_header(reader, file.data(), file.size())) fail(reader, name);
  const jpeg_decompress_struct& decoder = reader.decoder;
  const auto refuse = [&](const char* what) {
    throw Error(ErrorCode::input,
                fmt::format("{}: {}; convert it to a baseline or progressive RGB JPEG", name, what));
  };
  if (decoder.jpeg_color_space == JCS_CMYK || decoder.jpeg_color_space == JCS_YCCK)
    refuse("is a CMYK JPEG picture");
  if (decoder.num_components != 1 && decoder.num_components != 3)
    refuse("is a JPEG picture of unknown colours");
  if (decoder.arith_code) refuse("is a JPEG picture with arithmetic coding");
  check_claimed_size(decoder.image_width, decoder.image_height, file.size(), kMostPixelsPerByte, name);
  const int turned = orientation(decoder);  // the end of reading forgets it
  if (!start(reader)) fail(reader, name);

  DecodedPicture decoded;
  decoded.picture = Picture::blank(decoder.output_width, decoder.output_height, decoder.output_components);
  const auto row_bytes =
      static_cast<std::size_t>(decoder.output_width) * static_cast<std::size_t>(decoder.output_components);
  if (!read_rows(reader, decoded.picture.samples.data(), row_bytes)) fail(reader, name);
  decoded.picture = upright(std::move(decoded.picture), turned);
  return decoded;
}

}  // namespace warpweave::denoiser
