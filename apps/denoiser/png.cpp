// PNG by libpng. Its errors arrive by longjmp, which must not pass over a frame that owns C++ objects: the
// functions that call setjmp hold plain data only, and whatever owns memory lives in their callers.
#include <fmt/format.h>
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "denoiser/picture.h"
#include "denoiser/picture_codecs.h"
#include "warpweave/error.h"

namespace warpweave::denoiser {
namespace {

// Deflate packs at most 1032 bytes into one, and a byte holds at most eight 1-bit pixels.
constexpr std::int64_t kMostPixelsPerByte = 1032 * 8;

struct Source {
  const std::uint8_t* next = nullptr;
  std::size_t left = 0;
};

struct Failure {
  char text[160] = {};
  bool out_of_memory = false;
};

struct Header {
  png_uint_32 width = 0, height = 0;
  int bits = 0, channels = 0;
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* failure = static_cast<Failure*>(png_get_error_ptr(png));
  std::snprintf(failure->text, sizeof failure->text, "%s", message);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}  // ancillary chunks may be odd; the pixels are what matters

void read_bytes(png_structp png, png_bytep to, png_size_t count) {
  auto* source = static_cast<Source*>(png_get_io_ptr(png));
  if (count > source->left) png_error(png, "the file ends too early");
  std::memcpy(to, source->next, count);
  source->next += count;
  source->left -= count;
}

// Owns libpng's state for one read.
struct Reader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Source source;
  Failure failure;

  explicit Reader(std::span<const std::uint8_t> file) : source{file.data(), file.size()} {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &failure, on_error, on_warning);
    if (png) info = png_create_info_struct(png);
    if (!info) {
      png_destroy_read_struct(&png, nullptr, nullptr);
      throw std::bad_alloc();
    }
  }
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
};

bool read_header(Reader& reader, Header& header) {
  if (setjmp(png_jmpbuf(reader.png))) return false;
  png_set_read_fn(reader.png, &reader.source, read_bytes);
  // Text, profiles and unknown chunks are of no use here, and a way to make us take memory.
  png_set_keep_unknown_chunks(reader.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_set_chunk_cache_max(reader.png, 16);
  png_set_chunk_malloc_max(reader.png, 1 << 20);
  png_read_info(reader.png, reader.info);
  header.width = png_get_image_width(reader.png, reader.info);
  header.height = png_get_image_height(reader.png, reader.info);
  header.bits = png_get_bit_depth(reader.png, reader.info);
  return true;
}

// Asks for 8-bit grey or RGB, with alpha where the file has transparency of any kind.
bool set_transforms(Reader& reader, Header& header) {
  if (setjmp(png_jmpbuf(reader.png))) return false;
  png_set_expand(reader.png);    // palettes to RGB, 1, 2, 4 bits to 8, tRNS to alpha
  png_set_scale_16(reader.png);  // rounds, unlike png_set_strip_16
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  header.channels = png_get_channels(reader.png, reader.info);
  return true;
}

bool read_rows(Reader& reader, png_bytepp rows) {
  if (setjmp(png_jmpbuf(reader.png))) return false;
  png_read_image(reader.png, rows);
  png_read_end(reader.png, nullptr);
  return true;
}

[[noreturn]] void fail(const Failure& failure, const std::string& name) {
  throw Error(ErrorCode::input, fmt::format("{}: is a damaged PNG picture: {}", name, failure.text));
}

struct Writer {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::vector<std::uint8_t> bytes;
  Failure failure;

  Writer() {
    png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &failure, on_error, on_warning);
    if (png) info = png_create_info_struct(png);
    if (!info) {
      png_destroy_write_struct(&png, nullptr);
      throw std::bad_alloc();
    }
  }
  ~Writer() { png_destroy_write_struct(&png, &info); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
};

// Called through C frames, so no exception may leave; what it owns is gone before the longjmp of png_error.
void append_bytes(png_structp png, png_bytep from, png_size_t count) {
  auto* writer = static_cast<Writer*>(png_get_io_ptr(png));
  try {
    writer->bytes.insert(writer->bytes.end(), from, from + count);
    return;
  } catch (...) {
    writer->failure.out_of_memory = true;
  }
  png_error(png, "out of memory");
}

bool write_rows(Writer& writer, const Header& header, int colour_type, png_bytepp rows) {
  if (setjmp(png_jmpbuf(writer.png))) return false;
  png_set_write_fn(writer.png, &writer, append_bytes, nullptr);
  png_set_IHDR(writer.png, writer.info, header.width, header.height, header.bits, colour_type,
               PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(writer.png, writer.info);
  png_write_image(writer.png, rows);
  png_write_end(writer.png, nullptr);
  return true;
}

std::vector<png_bytep> row_pointers(Picture& picture) {
  std::vector<png_bytep> rows(static_cast<std::size_t>(picture.height));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = picture.samples.data() + static_cast<std::int64_t>(i) * picture.width * picture.channels;
  }
  return rows;
}

}  // namespace

DecodedPicture decode_png(std::span<const std::uint8_t> file, const std::string& name) {
  Reader reader(file);
  Header header;
  if (!read_header(reader, header)) fail(reader.failure, name);
  check_claimed_size(header.width, header.height, file.size(), kMostPixelsPerByte, name);
  if (!set_transforms(reader, header)) fail(reader.failure, name);

  DecodedPicture decoded;
  decoded.picture = Picture::blank(header.width, header.height, header.channels);
  if (header.bits == 16) decoded.notice = "16-bit samples are reduced to 8 bits";
  std::vector<png_bytep> rows = row_pointers(decoded.picture);
  if (!read_rows(reader, rows.data())) fail(reader.failure, name);
  return decoded;
}

std::vector<std::uint8_t> encode_png(const Picture& picture) {
  constexpr int kColourTypes[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                                  PNG_COLOR_TYPE_RGB_ALPHA};
  Picture copy = picture;  // libpng takes rows that are not const
  std::vector<png_bytep> rows = row_pointers(copy);
  const Header header = {static_cast<png_uint_32>(picture.width), static_cast<png_uint_32>(picture.height), 8,
                         picture.channels};
  Writer writer;
  if (!write_rows(writer, header, kColourTypes[picture.channels - 1], rows.data())) {
    if (writer.failure.out_of_memory) throw std::bad_alloc();
    throw Error(ErrorCode::internal, fmt::format("PNG encoder: {}", writer.failure.text));
  }
  return std::move(writer.bytes);
}

}  // namespace warpweave::denoiser
