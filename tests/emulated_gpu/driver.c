// What TVM's CUDA runtime calls of libcudart and libcuda, for a GPU whose memory is the process's own.
//
// Built twice: with -DRUNTIME it is libcudart.so.13, else libcuda.so.1. Modules and launches go to two functions that
// the process sets (device.py); everything else is done here, at once and in order.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#ifdef RUNTIME

#define DONE 0
#define NOTHING(name) int name() { return DONE; }
NOTHING(cudaSetDevice) NOTHING(cudaEventDestroy) NOTHING(cudaEventRecord) NOTHING(cudaEventSynchronize)
NOTHING(cudaGetLastError) NOTHING(cudaPeekAtLastError) NOTHING(cudaStreamDestroy) NOTHING(cudaStreamSynchronize)
NOTHING(cudaStreamWaitEvent) NOTHING(cudaGraphDestroy) NOTHING(cudaGraphExecDestroy) NOTHING(cudaGraphInstantiate)
NOTHING(cudaGraphLaunch) NOTHING(cudaStreamBeginCapture) NOTHING(cudaStreamEndCapture)

int cudaGetDevice(int* device) { *device = 0; return DONE; }
int cudaGetDeviceCount(int* count) { *count = 1; return DONE; }
int cudaGetDeviceProperties(void* properties) { memset(properties, 0, 64); return DONE; }
const char* cudaGetErrorName() { return "error"; }
const char* cudaGetErrorString() { return "an error of the emulated GPU"; }
int cudaEventCreate(void** event) { *event = NULL; return DONE; }
int cudaEventElapsedTime(float* ms) { *ms = 1; return DONE; }
int cudaStreamCreate(void** stream) { *stream = NULL; return DONE; }
int cudaStreamCreateWithFlags(void** stream) { *stream = NULL; return DONE; }
int cudaMemGetInfo(size_t* left, size_t* total) { *left = *total = (size_t)1 << 34; return DONE; }
int cudaDeviceGetAttribute(int* value, int attribute) {
  const char* arch = getenv("EMULATED_GPU_ARCH");  // such as 86
  int number = arch ? atoi(arch) : 86;
  switch (attribute) {
    case 1: *value = 1024; break;         // threads of a block
    case 8: *value = 101376; break;       // shared memory of one
    case 10: *value = 32; break;          // lanes of a warp
    case 75: *value = number / 10; break; // compute capability
    case 76: *value = number % 10; break;
    default: *value = 1;
  }
  return DONE;
}
enum { MOST = 65536 };
static struct { char* begin; size_t bytes; } pieces[MOST];
static int num_pieces;
// What nothing has written is NaN.
int cudaMalloc(void** memory, size_t bytes) {
  size_t size = (bytes + 255) / 256 * 256;
  *memory = num_pieces < MOST ? aligned_alloc(256, size ? size : 256) : NULL;
  if (!*memory) return 2;
  memset(*memory, 0xff, size);
  pieces[num_pieces].begin = *memory;
  pieces[num_pieces++].bytes = bytes;
  return DONE;
}
int cudaMallocHost(void** memory, size_t bytes) { return cudaMalloc(memory, bytes); }
int cudaFree(void* memory) {
  for (int i = 0; i < num_pieces; ++i)
    if (pieces[i].begin == memory) pieces[i] = pieces[--num_pieces];
  free(memory);
  return DONE;
}
int cudaFreeHost(void* memory) { return cudaFree(memory); }
// -> bytes from an address to the end of its piece; 0: it is in none
size_t emulated_room(const char* at) {
  for (int i = 0; i < num_pieces; ++i)
    if (at >= pieces[i].begin && at < pieces[i].begin + pieces[i].bytes) return pieces[i].begin + pieces[i].bytes - at;
  return 0;
}
int cudaMemcpyAsync(void* to, const void* from, size_t bytes) { memcpy(to, from, bytes); return DONE; }
int cudaMemcpyPeerAsync(void* to, int device, const void* from, int other, size_t bytes) {
  memcpy(to, from, bytes);
  return DONE;
}

#else

enum { DONE = 0, NOT_FOUND = 500, FAILED = 719 };
typedef struct {
  unsigned grid[3], block[3], shared_bytes;
} Launch;  // how CUlaunchConfig begins

static int (*load)(const void* image);                                    // -> the module's number, < 0: refused
static int (*find)(int module, const char* name);                         // -> the function's number, < 0: none
static int (*launch)(int function, const Launch* config, void** values);  // 0: done
void emulated_gpu(void* loads, void* finds, void* launches) { load = loads; find = finds; launch = launches; }

int cuModuleLoadData(void** module, const void* image) {
  long number = load(image);
  *module = (void*)(number + 1);
  return number < 0 ? FAILED : DONE;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  long number = find((int)((long)module - 1), name);
  *function = (void*)(number + 1);
  return number < 0 ? NOT_FOUND : DONE;
}
int cuLaunchKernelEx(const Launch* config, void* function, void** values, void** extra) {
  return launch((int)((long)function - 1), config, values) ? FAILED : DONE;
}
int cuModuleUnload(void* module) { return DONE; }
int cuFuncSetAttribute(void* function, int attribute, int value) { return DONE; }
int cuDeviceGetName(char* name, int length, int device) { strncpy(name, "emulated", (size_t)length); return DONE; }
int cuGetErrorName(int error, const char** text) { *text = "CUDA_ERROR_OF_THE_EMULATED_GPU"; return DONE; }
int cuGetErrorString(int error, const char** text) { *text = "an error of the emulated GPU"; return DONE; }
int cuTensorMapEncodeTiled() { return FAILED; }

#endif
