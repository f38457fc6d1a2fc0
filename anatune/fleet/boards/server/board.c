/* A server of TVM's RPC for boards without Python: TVM's runtime and this file are all a board needs.
 *
 *   cc -O2 -I INCLUDE -o board board.c -ldl
 *   ./board --tracker HOST:PORT --key KEY [--host 127.0.0.1] [--port 9090] [--port-end 9199] [--address SEEN_AS]
 *           [--libraries FOLDER] [--work FOLDER]
 *
 * INCLUDE is what `python -c "import tvm_ffi; print(tvm_ffi.libinfo.find_include_path())"` prints; FOLDER holds
 * libtvm_ffi.so, libtvm_runtime.so and libtvm_runtime_extra.so of the board's wheels. Without a tracker KEY is what
 * clients have to name.
 *
 * It does what tvm/rpc/server.py does, and besides: a session's process that crashes, or whose client is gone, ends
 * and leaves the board free; files have plain names and stay in a folder of their own, which goes with the session.
 * The protocol knows neither passwords nor encryption, and whoever can connect runs what they like: it listens on
 * the loopback unless --host says otherwise.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

enum { RPC_MAGIC = 0xFF271, RPC_MISMATCH = RPC_MAGIC + 2, TRACKER_MAGIC = 0x2F271 };
enum { PUT = 3, UPDATE_INFO = 5, GET_PENDING = 7 };

enum {
  PING_MS = 2000,      /* between two questions to the tracker; as tvm/rpc/server.py */
  UNUSED_PINGS = 3,    /* a key that a client took and did not use for as many is replaced */
  HELLO_S = 5,         /* a client says who it is within this time, a tracker answers */
  RETRY_S = 1,         /* between two attempts to reach the tracker */
  GRACE_MS = 2000,     /* a session's process may go on as long when its client is gone */
  MOST_KEY = 512,
  MOST_REPLY = 1 << 20
};

static const char *g_host = "127.0.0.1", *g_key = "", *g_address = NULL, *g_libraries = NULL, *g_work = "/tmp";
static char g_folder[1024];

static void say(const char *format, ...) {
  va_list values;
  va_start(values, format);
  fputs("board: ", stderr);
  vfprintf(stderr, format, values);
  fputc('\n', stderr);
  va_end(values);
}

static void fail(const char *what, const char *why) {
  say("%s: %s", what, why);
  exit(1);
}

/* ---- TVM's runtime ------------------------------------------------------------------------------------------- */

static struct {
  int (*get)(const TVMFFIByteArray *, TVMFFIObjectHandle *);
  int (*set)(const TVMFFIByteArray *, TVMFFIObjectHandle, int);
  int (*create)(void *, TVMFFISafeCallType, void (*)(void *), TVMFFIObjectHandle *);
  int (*call)(TVMFFIObjectHandle, TVMFFIAny *, int32_t, TVMFFIAny *);
  int (*string)(const TVMFFIByteArray *, TVMFFIAny *);
  void (*raise)(const char *, const char *);
} ffi;

static void *library(const char *name) {
  char path[2048];
  snprintf(path, sizeof path, "%s%s%s", g_libraries ? g_libraries : "", g_libraries ? "/" : "", name);
  void *found = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (found == NULL) fail("a library of TVM's runtime cannot be loaded (--libraries says where they are)", dlerror());
  return found;
}

static void load_runtime(void) {
  void *base = library("libtvm_ffi.so");
  library("libtvm_runtime.so");
  library("libtvm_runtime_extra.so");
  *(void **)&ffi.get = dlsym(base, "TVMFFIFunctionGetGlobal");
  *(void **)&ffi.set = dlsym(base, "TVMFFIFunctionSetGlobal");
  *(void **)&ffi.create = dlsym(base, "TVMFFIFunctionCreate");
  *(void **)&ffi.call = dlsym(base, "TVMFFIFunctionCall");
  *(void **)&ffi.string = dlsym(base, "TVMFFIStringFromByteArray");
  *(void **)&ffi.raise = dlsym(base, "TVMFFIErrorSetRaisedFromCStr");
  if (!ffi.get || !ffi.set || !ffi.create || !ffi.call || !ffi.string || !ffi.raise)
    fail("libtvm_ffi.so", "it is of another version: functions are missing");
}

static TVMFFIByteArray bytes_of(const char *text) { return (TVMFFIByteArray){text, strlen(text)}; }

static TVMFFIObjectHandle global(const char *name) {
  TVMFFIByteArray bytes = bytes_of(name);
  TVMFFIObjectHandle found = NULL;
  if (ffi.get(&bytes, &found) != 0 || found == NULL) fail("TVM's runtime has no function", name);
  return found;
}

/* Write `folder/NAME` for the text in the only argument; raise an error for anything but a plain name. */
static int path_of(const TVMFFIAny *args, int32_t count, char *path, size_t size) {
  const char *name = NULL;
  size_t length = 0;
  if (count == 1 && args[0].type_index == kTVMFFIRawStr) {
    name = args[0].v_c_str;
    length = strlen(name);
  } else if (count == 1 && args[0].type_index == kTVMFFISmallStr) {
    name = args[0].v_bytes;
    length = args[0].small_str_len;
  } else if (count == 1 && args[0].type_index == kTVMFFIStr) {
    const TVMFFIByteArray *text = (const TVMFFIByteArray *)(args[0].v_obj + 1);
    name = text->data;
    length = text->size;
  }
  if (name == NULL || length == 0 || length > 255 || name[0] == '.' || memchr(name, '/', length) != NULL) {
    ffi.raise("ValueError", "expected a plain file name");
    return -1;
  }
  snprintf(path, size, "%s/%.*s", g_folder, (int)length, name);
  return 0;
}

static int work_path(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  char path[2048];
  (void)self;
  if (path_of(args, count, path, sizeof path) != 0) return -1;
  TVMFFIByteArray bytes = bytes_of(path);
  return ffi.string(&bytes, result);
}

static int load_module(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  char path[2048];
  (void)self;
  if (path_of(args, count, path, sizeof path) != 0) return -1;
  TVMFFIAny argument = {.type_index = kTVMFFIRawStr, .v_c_str = path};
  return ffi.call(global("ffi.ModuleLoadFromFile"), &argument, 1, result);
}

static void offer(const char *name, TVMFFISafeCallType function) {
  TVMFFIObjectHandle handle = NULL;
  TVMFFIByteArray bytes = bytes_of(name);
  if (ffi.create(NULL, function, NULL, &handle) != 0 || ffi.set(&bytes, handle, 1) != 0)
    fail("TVM's runtime refuses a function", name);
}

/* ---- messages ------------------------------------------------------------------------------------------------ */

static int send_all(int fd, const void *data, size_t size) {
  for (const char *at = data; size > 0;) {
    ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent <= 0) return -1;
    at += sent;
    size -= (size_t)sent;
  }
  return 0;
}

static int receive_all(int fd, void *data, size_t size) {
  for (char *at = data; size > 0;) {
    ssize_t got = recv(fd, at, size, 0);
    if (got <= 0) return -1;
    at += got;
    size -= (size_t)got;
  }
  return 0;
}

/* Messages are a 32-bit length, then as many bytes; integers are little-endian, as every board here is. */
static int send_text(int fd, const char *text) {
  int32_t size = (int32_t)strlen(text);
  return send_all(fd, &size, sizeof size) != 0 || send_all(fd, text, (size_t)size) != 0 ? -1 : 0;
}

/* Ask the tracker; return its answer, which the caller frees, or NULL. */
static char *ask(int fd, const char *question) {
  int32_t size = 0;
  if (send_text(fd, question) != 0 || receive_all(fd, &size, sizeof size) != 0) return NULL;
  if (size < 0 || size > MOST_REPLY) return NULL;
  char *answer = calloc(1, (size_t)size + 1);
  if (answer != NULL && receive_all(fd, answer, (size_t)size) != 0) {
    free(answer);
    answer = NULL;
  }
  return answer;
}

static int agreed(int fd, const char *question) {
  char *answer = ask(fd, question);
  int is_agreed = answer != NULL && strcmp(answer, "0") == 0;
  free(answer);
  return is_agreed ? 0 : -1;
}

static void limit_waiting(int fd, int seconds) {
  struct timeval limit = {.tv_sec = seconds};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/* ---- the tracker --------------------------------------------------------------------------------------------- */

static int connect_tracker(const char *host, const char *port) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
  if (getaddrinfo(host, port, &hints, &found) != 0) return -1;
  int fd = -1;
  for (struct addrinfo *one = found; one != NULL && fd < 0; one = one->ai_next) {
    fd = socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol);
    if (fd < 0) continue;
    limit_waiting(fd, HELLO_S);
    if (connect(fd, one->ai_addr, one->ai_addrlen) != 0) {
      close(fd);
      fd = -1;
    }
  }
  freeaddrinfo(found);
  int32_t magic = TRACKER_MAGIC;
  if (fd >= 0 && (send_all(fd, &magic, 4) != 0 || receive_all(fd, &magic, 4) != 0 || magic != TRACKER_MAGIC)) {
    close(fd);
    fd = -1;
  }
  return fd;
}

static int register_board(int fd, int port) {
  char text[2 * MOST_KEY], address[300] = "null";
  if (g_address != NULL) snprintf(address, sizeof address, "\"%s\"", g_address);
  snprintf(text, sizeof text, "[%d, {\"key\": \"server:%s\", \"addr\": [%s, %d]}]", UPDATE_INFO, g_key, address, port);
  return agreed(fd, text);
}

/* Make a new key that a client has to name, and tell the tracker. */
static int offer_board(int fd, int port, char *match) {
  unsigned int draw[2] = {0, 0};
  FILE *source = fopen("/dev/urandom", "rb");
  if (source == NULL || fread(draw, sizeof draw, 1, source) != 1) draw[0] = (unsigned)time(NULL), draw[1] = (unsigned)getpid();
  if (source != NULL) fclose(source);
  snprintf(match, MOST_KEY, "%.400s:0.%08x%08x", g_key, draw[0], draw[1]);
  char text[3 * MOST_KEY], address[300] = "null";
  if (g_address != NULL) snprintf(address, sizeof address, "\"%s\"", g_address);
  snprintf(text, sizeof text, "[%d, \"%s\", [%d, \"%s\"], %s]", PUT, g_key, port, match, address);
  return agreed(fd, text);
}

/* ---- sessions ------------------------------------------------------------------------------------------------ */

/* Take a client's greeting; return the seconds that it may stay (0: no limit), or -1. */
static double greet(int fd, const char *match) {
  int32_t number = 0, size = 0;
  char text[2 * MOST_KEY] = {0}, wanted[MOST_KEY + 16], own[MOST_KEY + 16];
  limit_waiting(fd, HELLO_S);
  if (receive_all(fd, &number, 4) != 0 || number != RPC_MAGIC || receive_all(fd, &size, 4) != 0) return -1;
  if (size <= 0 || size >= (int32_t)sizeof text || receive_all(fd, text, (size_t)size) != 0) return -1;
  char *options = strchr(text, ' ');
  if (options != NULL) *options++ = '\0';
  snprintf(wanted, sizeof wanted, "client:%s", match);
  number = strcmp(text, wanted) == 0 ? RPC_MAGIC : RPC_MISMATCH;
  snprintf(own, sizeof own, "server:%.500s", g_key);
  if (send_all(fd, &number, 4) != 0 || number != RPC_MAGIC || send_text(fd, own) != 0) return -1;
  limit_waiting(fd, 0);
  const char *limit = options != NULL ? strstr(options, "-timeout=") : NULL;
  return limit != NULL ? atof(limit + strlen("-timeout=")) : 0.0;
}

static void serve(int fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (chdir(g_folder) != 0) fail(g_folder, strerror(errno));
  char threads[24];
  snprintf(threads, sizeof threads, "%ld", sysconf(_SC_NPROCESSORS_ONLN));
  setenv("TVM_NUM_THREADS", threads, 0); /* left to itself TVM takes half the processors of an x86 machine */
  offer("tvm.rpc.server.workpath", work_path);
  offer("tvm.rpc.server.load_module", load_module);
  TVMFFIAny argument = {.type_index = kTVMFFIInt, .v_int64 = fd}, result = {.type_index = kTVMFFINone};
  ffi.call(global("rpc.ServerLoop"), &argument, 1, &result);
  _exit(0);
}

static long now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

/* Wait for a session's process; end it when its time is up, or shortly after its client is gone. */
static const char *watch(pid_t child, int fd, int ended, double limit_s) {
  long until = limit_s > 0 ? now_ms() + (long)(1000 * limit_s) : 0;
  const char *why = NULL;
  int is_gone = 0;
  for (;;) {
    struct pollfd events[2] = {{.fd = ended, .events = POLLIN}, {.fd = is_gone ? -1 : fd, .events = POLLRDHUP}};
    long left = until ? until - now_ms() : -1;
    if (until && left <= 0) {
      why = is_gone ? "its client is gone" : "its time is up";
      kill(child, SIGKILL);
      until = 0;
      left = -1;
    }
    if (poll(events, 2, (int)left) < 0 && errno != EINTR) break;
    if (events[0].revents) break; /* the last end of the pipe was closed */
    if (!is_gone && events[1].revents) {
      is_gone = 1;
      until = now_ms() + GRACE_MS;
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (why == NULL && WIFSIGNALED(status)) why = strsignal(WTERMSIG(status));
  return why;
}

static void remove_folder(void) {
  DIR *folder = opendir(g_folder);
  char path[2048];
  for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
    snprintf(path, sizeof path, "%s/%s", g_folder, entry->d_name);
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) unlink(path);
  }
  if (folder != NULL) closedir(folder);
  rmdir(g_folder);
}

static void hold_session(int fd, int listener, double limit_s) {
  int ended[2];
  snprintf(g_folder, sizeof g_folder, "%.1000s/board-XXXXXX", g_work);
  if (mkdtemp(g_folder) == NULL) {
    say("no folder for a session in %s: %s", g_work, strerror(errno));
    return;
  }
  if (pipe(ended) != 0) fail("pipe", strerror(errno));
  say("session in %s", g_folder);
  pid_t child = fork();
  if (child == 0) {
    close(listener);
    close(ended[0]);
    serve(fd);
  }
  close(ended[1]);
  if (child > 0) {
    const char *why = watch(child, fd, ended[0], limit_s);
    say(why != NULL ? "session ended: %s" : "session ended", why);
  } else {
    say("no process for a session: %s", strerror(errno));
  }
  close(ended[0]);
  remove_folder();
}

/* ---- listening ----------------------------------------------------------------------------------------------- */

static int listen_on(int first, int last, int *port) {
  char text[16];
  for (*port = first; *port < last; ++*port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    snprintf(text, sizeof text, "%d", *port);
    if (getaddrinfo(g_host, text, &hints, &found) != 0) fail(g_host, "no such address");
    int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol), yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    int bound = fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 4) == 0;
    int why = errno;
    freeaddrinfo(found);
    if (bound) return fd;
    if (fd >= 0) close(fd);
    if (why != EADDRINUSE) fail(g_host, strerror(why));
  }
  fail(g_host, "no free port from --port to --port-end");
  return -1;
}

/* Serve one client after another. */
static void run(int listener, int port, const char *host, const char *tracker_port) {
  char match[MOST_KEY];
  int tracker = -1, unused = 0, is_offered = 0;
  snprintf(match, sizeof match, "%.400s", g_key);
  for (;;) {
    if (host != NULL && tracker < 0) {
      tracker = connect_tracker(host, tracker_port);
      is_offered = 0;
      if (tracker < 0 || register_board(tracker, port) != 0) {
        if (tracker >= 0) close(tracker);
        tracker = -1;
        sleep(RETRY_S);
        continue;
      }
      say("known to the tracker %s:%s as %s", host, tracker_port, g_key);
    }
    if (tracker >= 0 && !is_offered) {
      is_offered = offer_board(tracker, port, match) == 0;
      unused = 0;
    }
    struct pollfd event = {.fd = listener, .events = POLLIN};
    int ready = tracker < 0 || is_offered ? poll(&event, 1, tracker >= 0 ? PING_MS : -1) : 0;
    if (ready <= 0 && tracker >= 0) {
      char text[16], *pending = NULL;
      snprintf(text, sizeof text, "[%d]", GET_PENDING);
      if (!is_offered || (pending = ask(tracker, text)) == NULL) {
        say("the tracker is gone");
        close(tracker);
        tracker = -1;
      } else if (strstr(pending, match) != NULL) {
        unused = 0;
      } else if (++unused > UNUSED_PINGS) {
        is_offered = 0;
      }
      free(pending);
      continue;
    }
    int fd = ready > 0 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    if (fd < 0) continue;
    double limit_s = greet(fd, match);
    if (limit_s >= 0) {
      hold_session(fd, listener, limit_s);
      is_offered = 0;
    }
    close(fd);
  }
}

int main(int argc, char **argv) {
  static char tracker[512];
  int first = 9090, last = 9199, port = 0;
  for (int place = 1; place < argc; place += 2) {
    const char *name = argv[place], *value = place + 1 < argc ? argv[place + 1] : NULL;
    if (value == NULL) fail(name, "expected a value behind it");
    if (strcmp(name, "--tracker") == 0) snprintf(tracker, sizeof tracker, "%s", value);
    else if (strcmp(name, "--key") == 0) g_key = value;
    else if (strcmp(name, "--host") == 0) g_host = value;
    else if (strcmp(name, "--port") == 0) first = atoi(value), last = first < last ? last : first + 1;
    else if (strcmp(name, "--port-end") == 0) last = atoi(value);
    else if (strcmp(name, "--address") == 0) g_address = value;
    else if (strcmp(name, "--libraries") == 0) g_libraries = value;
    else if (strcmp(name, "--work") == 0) g_work = value;
    else fail(name, "no such option; expected --tracker, --key, --host, --port, --port-end, --address, --libraries or --work");
  }
  if (g_key[0] == '\0' || strlen(g_key) > 200 || strpbrk(g_key, "\"\\ \n") != NULL)
    fail("--key", "expected a name without spaces and quotes");
  char *colon = strrchr(tracker, ':');
  if (tracker[0] != '\0' && colon == NULL) fail("--tracker", "expected HOST:PORT");
  if (colon != NULL) *colon = '\0';
  signal(SIGPIPE, SIG_IGN);
  load_runtime();
  int listener = listen_on(first, last, &port);
  say("listens on %s:%d", g_host, port);
  if (strcmp(g_host, "127.0.0.1") != 0 && strcmp(g_host, "localhost") != 0 && strcmp(g_host, "::1") != 0)
    say("anybody who reaches this port can run programs here: TVM's protocol has no passwords");
  run(listener, port, colon != NULL ? tracker : NULL, colon != NULL ? colon + 1 : NULL);
}
