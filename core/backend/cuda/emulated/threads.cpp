/*
 * Fibers, barriers, warp exchanges, asynchronous copies and products of an emulated thread block.
 */
#include "core/backend/cuda/emulated/threads.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define __sanitizer_start_switch_fiber(save, bottom, size) ((void)(save))
#define __sanitizer_finish_switch_fiber(save, bottom, size) ((void)(save))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at))
#endif

struct uint3 threadIdx, blockIdx;
struct dim3 blockDim, gridDim;
char *emulated::shared_memory;
size_t emulated::shared_bytes;

/* __shared__ variables of kernels lie in a section of their own. */
extern EMULATED_HIDDEN char __start_emulated_shared[], __stop_emulated_shared[];
__attribute__((section("emulated_shared"), used)) static char section_anchor[1];

namespace
{
using namespace emulated;

#define STACK ((size_t)1 << 20)
#define COLOUR 704 /* offset between stacks, so that they use different cache sets */
#define COLOURS 256
#define GUARD ((size_t)1 << 12)
#define SHARED_ALIGNMENT 128
#if defined(__x86_64__) || defined(__aarch64__)
#define OWN_SWITCH /* fibers switch with emulated_switch() */
#endif

/* A stack, and where its execution stopped. */
struct fiber {
	const void *stack;
	size_t bytes;
	void *fake_stack; /* for the address sanitizer */
#ifdef OWN_SWITCH
	void *at;
#else
	ucontext_t at;
#endif
};

struct copy {
	uint32_t to;
	const void *from;
	uint32_t bytes;
	bool commits_group;
	const char *file;
	int line;
};

/* Elements that products in flight add to. */
struct sums {
	float *x;
	std::vector<float> values;
	int products;
};

struct product {
	float *x;
	const void *left;
	std::string left_before;
	std::function<void(float *)> add; /* empty: it is done */
	bool commits_group;
	const char *file;
	int line;
};

enum state : char { NOT_STARTED, READY, WAITING, ENDED };

struct thread {
	struct uint3 index;
	struct fiber *fiber;
	std::deque<struct copy> copies;
	std::deque<struct product> products;
	std::vector<struct sums> sums;
};

/* A barrier, and the threads that wait there. */
struct barrier {
	int arrivals;
	const char *file;
	int line;
};

struct warp {
	struct barrier barrier;
	int round;
	struct message messages[2][EMULATED_LANES];
};

/* The running block.  One host thread emulates one GPU. */
struct {
	const struct launch *launch;
	enum order order;
	std::vector<struct thread> threads;
	std::vector<enum state>
		states; /* by thread; a separate array, because every switch searches it */
	std::vector<struct warp> warps;
	std::vector<struct fiber *> idle;
	int current, n, ended;
	struct barrier barrier;
	std::string failure;
	struct fiber host;
} gpu;

/* ---------------------------------------------------------------------- fibers */

#ifdef OWN_SWITCH
/*
 * Saves the callee-saved registers on the current stack and continues on the other one.
 * (swapcontext() also sets the signal mask with a system call, which is ten times slower.)
 */
extern "C" void emulated_switch(void **from, void *to);
#ifdef __x86_64__
enum { SAVED = 7, RETURN = 6 }; /* saved words, and the index of the return address */
asm(".pushsection .text\n"
    ".type emulated_switch, @function\n"
    "emulated_switch:\n"
    "	push %rbp\n	push %rbx\n	push %r12\n	push %r13\n	push %r14\n	push %r15\n"
    "	mov %rsp, (%rdi)\n"
    "	mov %rsi, %rsp\n"
    "	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbx\n	pop %rbp\n"
    "	ret\n"
    ".size emulated_switch, . - emulated_switch\n"
    ".popsection");
#else
enum { SAVED = 20, RETURN = 11 };
asm(".pushsection .text\n"
    ".type emulated_switch, %function\n"
    "emulated_switch:\n"
    "	stp x19, x20, [sp, #-160]!\n	stp x21, x22, [sp, #16]\n	stp x23, x24, [sp, #32]\n"
    "	stp x25, x26, [sp, #48]\n	stp x27, x28, [sp, #64]\n	stp x29, x30, [sp, #80]\n"
    "	stp d8, d9, [sp, #96]\n	stp d10, d11, [sp, #112]\n"
    "	stp d12, d13, [sp, #128]\n	stp d14, d15, [sp, #144]\n"
    "	mov x9, sp\n	str x9, [x0]\n"
    "	mov sp, x1\n"
    "	ldp d14, d15, [sp, #144]\n	ldp d12, d13, [sp, #128]\n"
    "	ldp d10, d11, [sp, #112]\n	ldp d8, d9, [sp, #96]\n"
    "	ldp x29, x30, [sp, #80]\n	ldp x27, x28, [sp, #64]\n	ldp x25, x26, [sp, #48]\n"
    "	ldp x23, x24, [sp, #32]\n	ldp x21, x22, [sp, #16]\n	ldp x19, x20, [sp], #160\n"
    "	ret\n"
    ".size emulated_switch, . - emulated_switch\n"
    ".popsection");
#endif

inline void exchange(struct fiber *from, struct fiber *to)
{
	emulated_switch(&from->at, to->at);
}

/* Prepares the stack as if `begin` had been interrupted at its first instruction. */
void set_begin(struct fiber *f, void (*begin)(void))
{
	void **top = (void **)(((uintptr_t)f->stack + f->bytes) & ~(uintptr_t)15);
	void **saved = top - SAVED - SAVED % 2;

	memset(saved, 0, (size_t)((char *)top - (char *)saved));
	saved[RETURN] = (void *)begin;
	f->at = saved;
}
#else
inline void exchange(struct fiber *from, struct fiber *to)
{
	swapcontext(&from->at, &to->at);
}

void set_begin(struct fiber *f, void (*begin)(void))
{
	getcontext(&f->at);
	f->at.uc_stack.ss_sp = (void *)f->stack;
	f->at.uc_stack.ss_size = f->bytes;
	f->at.uc_link = NULL;
	makecontext(&f->at, begin, 0);
}
#endif

struct thread &current(void)
{
	return gpu.threads[(size_t)gpu.current];
}

/* Switches fibers.  Returns when another fiber switches back; `over`: none will. */
inline void go_to(struct fiber *from, struct fiber *to, bool over)
{
	__sanitizer_start_switch_fiber(over ? NULL : &from->fake_stack, to->stack, to->bytes);
	exchange(from, to);
	__sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
}

int next_thread(void);

/* Makes `next` the running thread. */
inline void set_current(int next)
{
	gpu.current = next;
	threadIdx = current().index;
	gpu.states[(size_t)next] = READY;
}

/*
 * The main function of a fiber.  After a thread has ended, the fiber runs the next thread that was
 * not started.
 */
void begin(void)
{
	struct fiber *mine = current().fiber;

	/* The first fiber is entered from the host's stack. */
	__sanitizer_finish_switch_fiber(NULL, gpu.host.stack ? NULL : &gpu.host.stack,
					gpu.host.stack ? NULL : &gpu.host.bytes);
	for (;;) {
		int next;

		gpu.launch->thread();
		if (!current().sums.empty())
			fail("a thread has ended while its products are in flight", NULL, 0);
		current().products.clear();
		gpu.states[(size_t)gpu.current] = ENDED;
		current().copies.clear();
		gpu.ended++;
		if (gpu.barrier.arrivals > 0)
			fail("a thread has ended before a barrier where others wait",
			     gpu.barrier.file, gpu.barrier.line);
		next = next_thread();
		if (next >= 0 && gpu.states[(size_t)next] == NOT_STARTED) {
			gpu.threads[(size_t)next].fiber = mine;
			set_current(next);
			continue;
		}
		gpu.idle.push_back(mine);
		if (next >= 0)
			set_current(next);
		go_to(mine, next >= 0 ? current().fiber : &gpu.host, false);
	}
}

void start(struct fiber *f)
{
	ASAN_UNPOISON_MEMORY_REGION(f->stack, f->bytes);
	f->fake_stack = NULL;
	set_begin(f, begin);
}

/* Never freed: later launches reuse it. */
struct fiber *new_fiber(size_t number)
{
	struct fiber *f = new struct fiber();
	void *memory = mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED || mprotect(memory, GUARD, PROT_NONE)) {
		perror("emulated: the stack of a thread");
		abort();
	}
	f->stack = (char *)memory + GUARD;
	f->bytes = STACK - number % COLOURS * COLOUR;
	start(f);
	return f;
}

struct fiber *get_fiber(void)
{
	static size_t made;
	struct fiber *f;

	if (gpu.idle.empty())
		return new_fiber(made++);
	f = gpu.idle.back();
	gpu.idle.pop_back();
	return f;
}

/* ------------------------------------------------------------------- scheduling */

/* The next of n threads that can run after `from`, in the order of the launch; -1: none. */
int next_among(int first, int n, int from)
{
	const int step = gpu.order == FORWARDS ? 1 : -1;

	for (int i = 0, number = from; i < n; i++) {
		number += step;
		if (number == first + n)
			number = first;
		else if (number < first)
			number = first + n - 1;
		if (gpu.states[(size_t)number] <= READY)
			return number;
	}
	return -1;
}

int lanes_of(int warp)
{
	const int left = gpu.n - warp * EMULATED_LANES;

	return left < EMULATED_LANES ? left : EMULATED_LANES;
}

/* Prefers threads of the same warp; -1: all have ended. */
int next_thread(void)
{
	const int warp = gpu.current / EMULATED_LANES;
	int next = next_among(warp * EMULATED_LANES, lanes_of(warp), gpu.current);

	if (next < 0)
		next = next_among(0, gpu.n, gpu.current);
	if (next >= 0 || gpu.ended == gpu.n)
		return next;
	for (const struct warp &w : gpu.warps)
		if (w.barrier.arrivals)
			fail("not all threads of the warp reach this barrier", w.barrier.file,
			     w.barrier.line);
	fail("not all threads of the block reach this barrier", gpu.barrier.file, gpu.barrier.line);
}

/* Runs other threads until this one may continue. */
inline void wait(void)
{
	struct fiber *mine = current().fiber;
	int next;

	gpu.states[(size_t)gpu.current] = WAITING;
	next = next_thread();
	if (gpu.states[(size_t)next] == NOT_STARTED)
		gpu.threads[(size_t)next].fiber = get_fiber();
	set_current(next);
	go_to(mine, current().fiber, false);
}

void arrive(struct barrier *m, const char *file, int line)
{
	if (m->arrivals && (m->line != line || (m->file != file && strcmp(m->file, file) != 0)))
		fail("other threads wait at another barrier", file, line);
	m->file = file;
	m->line = line;
	m->arrivals++;
}

/* ---------------------------------------------------------------------- copies */

void do_copy(const struct copy &c)
{
	char *to = shared_at(c.to, c.bytes, c.file, c.line);

	if (c.from)
		memcpy(to, c.from, c.bytes);
	else
		memset(to, 0, c.bytes);
}

/* -------------------------------------------------------------------- products */

struct sums *sums_in_flight(const float *x)
{
	for (struct sums &s : current().sums)
		if (s.x == x)
			return &s;
	return NULL;
}

struct sums *begin_sums(float *x, size_t n)
{
	struct sums *s = sums_in_flight(x);

	if (!s) {
		current().sums.push_back({ x, std::vector<float>(x, x + n), 0 });
		s = &current().sums.back();
		std::fill_n(x, n, NAN);
	}
	s->products++;
	return s;
}

void finish_product(const struct product &p)
{
	std::vector<struct sums> &all = current().sums;
	struct sums *s = sums_in_flight(p.x);

	if (p.left && memcmp(p.left, p.left_before.data(), p.left_before.size()) != 0)
		fail("the left operand of a product changed before it was done", p.file, p.line);
	if (p.add)
		p.add(s->values.data());
	if (--s->products > 0)
		return;
	std::copy(s->values.begin(), s->values.end(), p.x);
	all.erase(all.begin() + (s - all.data()));
}

/* ---------------------------------------------------------------------- blocks */

__attribute__((no_sanitize_address)) void unset_variables(void)
{
	for (volatile char *at = __start_emulated_shared; at < __stop_emulated_shared; at++)
		*at = (char)EMULATED_UNSET;
}

void prepare_block(void)
{
	const struct dim3 size = gpu.launch->threads;

	for (int i = 0; i < gpu.n; i++) {
		struct thread &t = gpu.threads[(size_t)i];

		gpu.states[(size_t)i] = NOT_STARTED;
		t.index = { (unsigned)i % size.x, (unsigned)i / size.x % size.y,
			    (unsigned)i / size.x / size.y };
	}
	for (struct warp &w : gpu.warps)
		w.barrier = {};
	gpu.barrier = {};
	gpu.ended = 0;
	unset_variables();
	memset(shared_memory, EMULATED_UNSET, shared_bytes);
}

void run_block(void)
{
	const int first = gpu.order == FORWARDS ? 0 : gpu.n - 1;

	prepare_block();
	gpu.threads[(size_t)first].fiber = get_fiber();
	set_current(first);
	go_to(&gpu.host, current().fiber, false);
}

/* Resets the fibers of threads that an error interrupted. */
void clear_fibers(void)
{
	for (int i = 0; i < gpu.n; i++) {
		struct thread &t = gpu.threads[(size_t)i];

		t.copies.clear();
		t.products.clear();
		t.sums.clear();
		if (gpu.states[(size_t)i] == NOT_STARTED || gpu.states[(size_t)i] == ENDED)
			continue;
		start(t.fiber);
		gpu.idle.push_back(t.fiber);
	}
}

void run_blocks(void)
{
	const uint64_t n = gridDim.count();

	for (uint64_t i = 0; i < n && gpu.failure.empty(); i++) {
		const uint64_t number = gpu.order == FORWARDS ? i : n - 1 - i;

		blockIdx = { (unsigned)(number % gridDim.x),
			     (unsigned)(number / gridDim.x % gridDim.y),
			     (unsigned)(number / gridDim.x / gridDim.y) };
		run_block();
	}
	if (!gpu.failure.empty())
		clear_fibers();
}
} // namespace

/* -------------------------------------------------------------------- interface */

void *emulated::exact_memory(size_t alignment, size_t bytes)
{
	void *memory;

	return posix_memalign(&memory, alignment, bytes ? bytes : 1) ? NULL : memory;
}

std::string emulated::run(const struct launch &launch, enum order order)
{
	gpu.launch = &launch;
	gpu.order = order;
	gpu.n = (int)launch.threads.count();
	gpu.threads.resize((size_t)gpu.n);
	gpu.states.resize((size_t)gpu.n);
	gpu.warps.resize((size_t)(gpu.n + EMULATED_LANES - 1) / EMULATED_LANES);
	gpu.failure.clear();
	shared_bytes = (size_t)launch.bytes;
	shared_memory = (char *)exact_memory(SHARED_ALIGNMENT, shared_bytes);
	blockDim = launch.threads;
	gridDim = launch.blocks;
	run_blocks();
	free(shared_memory);
	return gpu.failure;
}

void emulated::fail(const char *why, const char *file, int line)
{
	char text[512];

	snprintf(text, sizeof(text), "%s:%d: %s (block %u,%u,%u, thread %u,%u,%u, kernel %.200s)",
		 file ? file : "", line, why, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
		 threadIdx.y, threadIdx.z, gpu.launch->kernel);
	gpu.failure = text;
	go_to(current().fiber, &gpu.host, true);
	abort();
}

void emulated::wait_for_block(const char *file, int line)
{
	if (gpu.ended)
		fail("some threads of the block have ended before this barrier", file, line);
	arrive(&gpu.barrier, file, line);
	if (gpu.barrier.arrivals < gpu.n) {
		wait();
		return;
	}
	gpu.barrier.arrivals = 0;
	std::fill(gpu.states.begin(), gpu.states.end(), READY);
}

struct emulated::message *emulated::exchange_in_warp(const void *mine, size_t bytes,
						     void (*combine)(struct message *),
						     const char *file, int line)
{
	const int warp = gpu.current / EMULATED_LANES, first = warp * EMULATED_LANES;
	struct warp &w = gpu.warps[(size_t)warp];
	struct message *messages = w.messages[w.round % 2];

	if (bytes)
		memcpy(messages[gpu.current - first].bytes, mine, bytes);
	arrive(&w.barrier, file, line);
	if (w.barrier.arrivals < lanes_of(warp)) {
		wait();
		return messages;
	}
	w.barrier.arrivals = 0;
	w.round++;
	std::fill_n(gpu.states.begin() + first, lanes_of(warp), READY);
	if (combine)
		combine(messages);
	return messages;
}

void emulated::begin_copy(uint32_t to, const void *from, size_t bytes, const char *file, int line)
{
	const struct copy c = { to, from, (uint32_t)bytes, false, file, line };

	if ((uintptr_t)from % bytes)
		fail("an address of a copy is not aligned", file, line);
	shared_at(to, bytes, file, line);
	if (gpu.order == BACKWARDS)
		do_copy(c);
	else
		current().copies.push_back(c);
}

void emulated::end_group(void)
{
	if (gpu.order == FORWARDS)
		current().copies.push_back({ 0, NULL, 0, true, NULL, 0 });
}

void emulated::wait_for_cp_async(size_t left)
{
	std::deque<struct copy> &copies = current().copies;
	size_t groups = 0;

	for (const struct copy &c : copies)
		groups += c.commits_group;
	while (groups > left) {
		const struct copy c = copies.front();

		copies.pop_front();
		if (c.commits_group)
			groups--;
		else
			do_copy(c);
	}
}

void emulated::begin_product(float *x, size_t n, const void *left, size_t bytes,
			     std::function<void(float *)> add, const char *file, int line)
{
	struct sums *s = begin_sums(x, n);
	const std::string left_before(left ? (const char *)left : "", bytes);

	if (gpu.order == FORWARDS) {
		add(s->values.data());
		add = nullptr;
	}
	current().products.push_back({ x, left, left_before, add, false, file, line });
}

void emulated::end_products(void)
{
	current().products.push_back({ NULL, NULL, "", nullptr, true, NULL, 0 });
}

void emulated::wait_for_products(const float *x, size_t left, const char *file, int line)
{
	std::deque<struct product> &products = current().products;
	size_t groups = 0;

	for (const struct product &p : products)
		groups += p.commits_group;
	while (groups > left) {
		const struct product p = products.front();

		products.pop_front();
		if (p.commits_group)
			groups--;
		else
			finish_product(p);
	}
	if (sums_in_flight(x))
		fail("these products are still in flight after the wait", file, line);
}
